"""``linformer train``: one training run, from documents to a model folder with its report."""

from pathlib import Path

import transformers

from torch_linformer.data.reading.sources import find_source
from torch_linformer.distributed import processes
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import require_compiler, resolve_device
from torch_linformer.opening.folder import begin_run, identity, shared_run
from torch_linformer.opening.hub import repository_for, upload
from torch_linformer.training.run_options import OF_WORDS
from torch_linformer.training.run_report import show_outcome, write_outcome
from torch_linformer.training.splits import Splits, load_splits
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training import Training
from torch_linformer.training.training_screen import TrainingScreen


def train(
    settings: TrainSettings, *, resume: bool = False, command: str = "", screen: TrainingScreen | None = None
) -> Path:
    """Train a model, score it on documents it never saw, and leave everything in the folder of the run.

    Under ``torchrun`` or ``accelerate launch`` the processes share each batch. The main one does what is done once.

    Args:
        settings: what to train on what.
        resume: continue from the last whole checkpoint of a run with the same settings.
        command: the command line, for the report.
        screen: where progress is shown.

    Returns:
        The folder, which ``from_pretrained`` loads.

    Raises:
        InputError: for anything wrong with the settings, the data or the folder.
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is written.
        SaidElsewhere: in the other processes, where the main one failed.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    output = Path(settings.output or Path("runs") / find_source(settings.data, "train").name)
    processes.join(resolve_device(settings.device), settings.batch_size, settings.context_parallel, settings.fsdp)
    if settings.frozen and processes.count() > 1:
        trained = "--train-encoder or --from none" if settings.task in OF_WORDS else "--no-freeze"
        raise InputError(
            f"nothing is trained step by step here, so one process is enough: leave torchrun out, or give {trained}"
        )
    if settings.compile:
        require_compiler(resolve_device(settings.device))
    screen, run = screen or TrainingScreen(), identity(settings)
    with shared_run(output, run, resume, screen) as (checkpoint, finished):

        def read_splits(completed: TrainSettings) -> Splits:
            """The documents of a run, which are those that it began with where it goes on."""
            splits = load_splits(completed)
            begin_run(output, run, splits.digest, checkpoint)
            return splits

        repository = processes.on_main(lambda: repository_for(settings.push_to_hub))
        if finished:
            screen.say(f"{output} holds this run already, and it is finished; remove the folder to train it again")
        else:
            outcome = Training(settings, output, read_splits, screen, checkpoint).learn(command)
            if outcome is not None:
                write_outcome(outcome, output)
                show_outcome(outcome, output, screen)
    if repository is not None and processes.is_main():
        upload(output, repository, screen)
    return output
