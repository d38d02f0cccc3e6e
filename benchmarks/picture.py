"""Trained agents side by side in one looping picture, each run's score under its film.

    python benchmarks/picture.py runs/<run> runs/<run> --out benchmarks/results/agents.webp

ppo_eval plays each run's agent and films its best episode; shown are the same few seconds from the
middle of each film, and the mean return over all episodes. The name's end, .webp or .gif, says how
it is written.
"""

import argparse
import json
import sys
from pathlib import Path

import imageio.v2 as imageio
from PIL import Image, ImageDraw, ImageFont
from records import RESULTS, Failure, python, run_process, warn

FPS = 20  # frames a second
GAP, LABEL = 10, 48  # pixels between films, and under them
MOST = 2_000_000  # bytes


def film(run: Path, seconds: float, height: int) -> list[Image.Image]:
    """The middle of a run's film, FPS images a second; the last one stays where it is too short."""
    with imageio.get_reader(run / "video.mp4") as reader:
        fps, count = reader.get_meta_data()["fps"], reader.count_frames()
        start = max(count / fps - seconds, 0) / 2
        wanted = [int(fps * (start + i / FPS)) for i in range(round(seconds * FPS))]
        found = {}
        for i, frame in enumerate(reader):
            if i in wanted:
                image = Image.fromarray(frame)
                found[i] = image.resize((round(height * image.width / image.height), height))
    return [found[min(i, max(found))] for i in wanted]


def page(images: tuple[Image.Image, ...], labels: list[str]) -> Image.Image:
    """One image of each film side by side, its label under it."""
    width = sum(image.width + GAP for image in images) - GAP
    found = Image.new("RGB", (width, images[0].height + LABEL), "white")
    draw, left = ImageDraw.Draw(found), 0
    look = {"fill": "black", "anchor": "ma", "align": "center", "font": ImageFont.load_default(16)}
    for image, label in zip(images, labels, strict=True):
        found.paste(image, (left, 0))
        draw.multiline_text((left + image.width / 2, image.height + 4), label, **look)
        left += image.width + GAP
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "agents.webp")
    parser.add_argument("--episodes", type=int, default=20, help="that ppo_eval plays")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--height", type=int, default=200, help="of the films, in pixels")
    args = parser.parse_args()
    paths = [run / "checkpoint.pt" for run in args.runs]
    wrong = [f"{path}: no such file" for path in paths if not path.exists()]
    if args.out.suffix not in (".webp", ".gif"):
        wrong.append(f"--out {args.out}: give a name that ends in .webp or .gif")
    if min(args.episodes, args.height, args.seconds * FPS) < 1:
        wrong.append("give 1 or more --episodes and --height, and 0.05 or more --seconds")
    if wrong:
        warn(wrong[0])
        return 2
    films, labels = [], []
    for run in args.runs:
        flags = ["--episodes", args.episodes, "--capture-video", "--video-game", "best"]
        try:
            run_process(python("ppo/ppo_eval.py", run, *flags))
        except Failure as failure:
            warn(f"{run}: {failure}")
            return 1
        found = json.loads((run / "eval.json").read_text())
        form = ",.0f" if abs(found["mean"]) >= 100 else ".1f"
        labels.append(f"{found['env_id']}\nmean return {found['mean']:{form}}")
        films.append(film(run, args.seconds, args.height))
    first, *more = [page(images, labels) for images in zip(*films, strict=True)]
    loop = {"save_all": True, "append_images": more, "duration": 1000 // FPS, "loop": 0}
    for quality in (80, 60, 40, 20):  # of .webp; the best that is small enough
        first.save(args.out, quality=quality, **loop)
        if (size := args.out.stat().st_size) <= MOST:
            break
    print(f"{args.out}: {first.width} x {first.height}, {args.seconds:g} s, {size / 1e6:.2f} MB")
    return int(size > MOST)


if __name__ == "__main__":
    sys.exit(main())
