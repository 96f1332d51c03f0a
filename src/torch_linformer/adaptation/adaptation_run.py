"""An adaptation, from a pretrained encoder and texts to a linear encoder with its report."""

from pathlib import Path
from typing import Any, cast

import transformers

from torch_linformer.adaptation.adapt_settings import BATCH, AdaptSettings
from torch_linformer.adaptation.adaptation import Adaptation
from torch_linformer.adaptation.adaptation_report import RESULT, show_adapted, write_report, write_student
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.adaptation.texts import read_documents
from torch_linformer.data.parts import content_digest
from torch_linformer.distributed import processes
from torch_linformer.opening.devices import require_compiler, resolve_device, resolve_precision
from torch_linformer.opening.folder import begin_run, identity, shared_run
from torch_linformer.opening.hub import repository_for, upload
from torch_linformer.training.training_screen import TrainingScreen


def run_adaptation(
    source: str,
    settings: AdaptSettings,
    *,
    resume: bool = False,
    command: str = "",
    screen: TrainingScreen | None = None,
) -> Path:
    """Adapt an encoder, compare it with the original on texts held out, and write everything into a folder.

    Under ``torchrun`` or ``accelerate launch`` the processes share each batch. The main one does what is done once.

    Args:
        source: a folder, a name on the hub, or ``minilm`` (:func:`torch_linformer.encoder_folder`).
        settings: how, and on which texts.
        resume: go on from the last whole checkpoint of the same adaptation.
        command: the command line, for the report.
        screen: where progress is shown.

    Returns:
        The folder, which ``from_pretrained`` loads.

    Raises:
        InputError: for anything wrong with the source, the settings, the texts or the folder.
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is written.
        SaidElsewhere: in the other processes, where the main one failed.
    """
    device = resolve_device(settings.device)
    resolve_precision(settings.precision, device)
    if settings.compile:
        require_compiler(device)
    processes.join(device, settings.batch_size or BATCH, fsdp=settings.fsdp, command="adapt")
    screen = screen or TrainingScreen()
    output = Path(settings.output or Path("runs") / f"{Path(source).absolute().name}-linformer")
    run = {**identity(settings), "source": source}
    with shared_run(output, run, resume, screen, RESULT) as (checkpoint, finished):
        repository = processes.on_main(lambda: repository_for(settings.push_to_hub))
        if finished:
            screen.say(f"{output} holds this adaptation already, and it is finished; remove the folder to run it again")
        else:
            cast(Any, transformers.logging).set_verbosity_error()
            cast(Any, transformers.logging).disable_progress_bar()
            original = load_encoder(source, settings.task, settings.seed, settings.trust_remote_code)
            train, test, notes = processes.on_main(lambda: read_documents(original.objective, settings))
            for note in notes:
                screen.say(note)
            digest = processes.on_main(lambda: content_digest({"training": train, "test": test}))
            processes.on_main(lambda: begin_run(output, run, digest, checkpoint))
            adaptation = Adaptation(original, train, test, settings, screen)
            spent = adaptation.distil(output, checkpoint)
            if processes.is_main():  # before anything is measured, so that nothing can take it away
                write_student(original, adaptation.student, output)
                screen.say(f"the model is in {output}")
            outcome = adaptation.outcome(spent, command)
            if processes.is_main():
                write_report(outcome, output)
                show_adapted(outcome, output, screen)
    if repository is not None and processes.is_main():
        upload(output, repository, screen)
    return output
