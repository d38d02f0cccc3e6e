r"""Trained agents side by side in one looping picture, with script, minutes and score of each.

    python benchmarks/learning.py --variants ppo_torchcompile:compile --env-ids CartPole-v1 \
        --seeds 1 --total-timesteps 500000 --jobs 2 --runs-dir runs --eval-games 20
    python benchmarks/picture.py runs/*/* --out benchmarks/results/agents.webp

Each folder is of a run with a record, from which its words come. ppo_eval plays 20 games and films
the best, unless the folder has a video.mp4. The name ends in .webp or .gif.
"""

import argparse
from pathlib import Path

import imageio.v2 as imageio
from lib.records import RESULTS, python, read, run_process
from lib.tables import cores
from PIL import Image, ImageDraw, ImageFont

FPS = 20  # frames a second
GAP, LABEL = 10, 72  # pixels between films, and under them


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "agents.webp", help="the picture")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each film")
    parser.add_argument("--height", type=int, default=200, help="of the films, in pixels")
    args = parser.parse_args()
    records = [r for path in sorted(RESULTS.glob("*.jsonl")) for r in read(path)]
    scored = [r for r in records if r.get("eval")]
    found = {r.get("run"): r for r in scored}  # of a run in stretches the last one
    films, labels = [], []
    for run in args.runs:
        if run.name not in found:
            parser.error(f"{run}: no record with --eval-games")
        if not (run / "video.mp4").exists():
            best = ["--episodes", 20, "--capture-video", "--video-game", "best"]
            run_process(python("ppo/ppo_eval.py", run, *best))
        labels.append(words(found[run.name]))
        films.append(film(run, args.seconds, args.height))
    first, *more = [page(images, labels) for images in zip(*films, strict=True)]
    loop = {"save_all": True, "append_images": more, "duration": 1000 // FPS, "loop": 0}
    first.save(args.out, quality=60, **loop)
    print(f"{args.out}: {first.width} x {first.height}, {args.seconds:g} s")


if __name__ == "__main__":
    main()
