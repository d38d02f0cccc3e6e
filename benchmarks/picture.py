"""Trained agents side by side in one looping picture, with script, minutes and score of each.

    python benchmarks/learning.py --variants ppo_torchcompile:compile --env-ids CartPole-v1 \\
        --seeds 1 --total-timesteps 500000 --jobs 2 --runs-dir runs --eval-games 20
    python benchmarks/picture.py runs/*/* --out benchmarks/results/agents.webp

Each folder is of a run with a record, from which its words come: the mean return is that of the
record's games. ppo_eval plays 20 games and films the best, unless the folder has a
video.mp4; shown are its first seconds. The name's end, .webp or .gif, says how it is written.
"""

import argparse
import sys
from pathlib import Path

import imageio.v2 as imageio
from lib.records import RESULTS, Failure, python, read, run_process, warn
from lib.tables import cores
from PIL import Image, ImageDraw, ImageFont

FPS = 20  # frames a second
GAP, LABEL = 10, 72  # pixels between films, and under them
MOST = 2_000_000  # bytes


def film(run: Path, seconds: float, height: int) -> list[Image.Image]:
    """The beginning of a run's film, FPS images a second; the last stays where it is too short."""
    with imageio.get_reader(run / "video.mp4") as reader:
        fps = reader.get_meta_data()["fps"]
        wanted = [int(fps * i / FPS) for i in range(round(seconds * FPS))]
        found = {}
        for i, frame in enumerate(reader):
            if i in wanted:
                image = Image.fromarray(frame)
                found[i] = image.resize((round(height * image.width / image.height), height))
    return [found[min(i, max(found))] for i in wanted]


def page(images: tuple[Image.Image, ...], labels: list[str]) -> Image.Image:
    """One image of each film side by side, its label under it, which may be the wider one."""
    font, left = ImageFont.load_default(13), 0
    texts = [max(map(font.getlength, label.splitlines())) for label in labels]
    widths = [max(image.width, round(text)) for image, text in zip(images, texts, strict=True)]
    size = sum(widths) + GAP * (len(images) - 1), images[0].height + LABEL
    found = Image.new("RGB", size, "white")
    look = {"fill": "black", "anchor": "ma", "align": "center", "font": font}
    for image, label, width in zip(images, labels, widths, strict=True):
        found.paste(image, (left + (width - image.width) // 2, 0))
        where = left + width / 2, image.height + 4
        ImageDraw.Draw(found).multiline_text(where, label, **look)
        left += width + GAP
    return found


def words(record: dict) -> str:
    """What stands under a film: task and score, script, what it took."""
    mean = record["eval"]["mean"]
    score = f"{mean:,.0f}" if abs(mean) >= 100 else f"{mean:.1f}"
    minutes = record["seconds"] / 60
    took = f"{minutes:.{0 if minutes >= 10 else 1}f} minutes, {cores(record['cores'])}"
    task = record["env_id"].rpartition(":")[2]  # without its module
    return f"{task}: {score}\n{record['script'].removesuffix('_torchcompile')}\n{took}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "agents.webp", help="the picture")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each film")
    parser.add_argument("--height", type=int, default=200, help="of the films, in pixels")
    args = parser.parse_args()
    records = [r for path in sorted(args.results.glob("*.jsonl")) for r in read(path)]
    scored = [r for r in records if r.get("eval")]
    found = {r.get("run"): r for r in scored}  # of a run in stretches the last one
    wrong = [f"{run}: no record with --eval-games" for run in args.runs if run.name not in found]
    if args.out.suffix not in (".webp", ".gif"):
        wrong.append(f"--out {args.out}: give a name that ends in .webp or .gif")
    if wrong:
        warn(wrong[0])
        return 2
    films, labels = [], []
    for run in args.runs:
        try:
            if not (run / "video.mp4").exists():
                best = ["--episodes", 20, "--capture-video", "--video-game", "best"]
                run_process(python("ppo/ppo_eval.py", run, *best))
        except Failure as failure:
            warn(f"{run}: {failure}")
            return 1
        labels.append(words(found[run.name]))
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
