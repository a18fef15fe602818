"""`stillbox weights`: a trained model's weights for other programs."""

import argparse
from pathlib import Path


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `weights` with its verb."""
    parser = verbs.add_parser("weights", help="write weights for other programs")
    inner = parser.add_subparsers(dest="weights_verb", required=True)
    save = inner.add_parser(
        "save",
        help="as a TF1 checkpoint, .npz or .safetensors",
        description="Writes parameters and moving statistics under the names that the original's "
        "checkpoints give them; `stillbox` reads all three formats.",
    )
    save.add_argument("model_dir", type=Path, metavar="DIR", help="a model directory")
    save.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="PATH",
        help="model.npz, model.safetensors, or a TF1 checkpoint's prefix such as model.ckpt",
    )
    save.add_argument(
        "--step", default="best", help="checkpoint: best, latest or a number (default: best)"
    )
    save.add_argument("--overwrite", action="store_true", help="replace what is there")
    save.set_defaults(run=run_save)


def run_save(arguments: argparse.Namespace) -> int:
    """Writes the weights and prints what was written."""
    from stillbox.checkpoints.saving import save_weights
    from stillbox.cli.arguments import checkpoint_choice

    saved = save_weights(
        arguments.model_dir,
        arguments.to,
        step=checkpoint_choice(arguments.step),
        overwrite=arguments.overwrite,
    )
    print(saved.render())
    return 0
