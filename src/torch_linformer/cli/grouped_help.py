"""Help in groups: a command of many options shows them under headings, in plain text of any width."""

from typing import Any

from typer.core import TyperCommand

GROUPS = {  # of the options of train and adapt
    "Data": "data text_column label_column label_names question_column source_column target_column query_column "
    "document_column documents group_column validation test",
    "How files are read": "encoding delimiter quoting header text_folder max_errors trust_remote_code",
    "Task and starting point": "task from_model freeze freeze_layers size tokenizer model lexical vectors read_window",
    "Length": "max_length max_target_length overflow stride packing",
    "Attention": "k window exact_below",
    "Training": "epochs steps max_steps minutes patience batch_size slots_only learning_rate slot_learning_rate "
    "class_weights whole_words seed",
    "Hardware": "device precision compile context_parallel fsdp",
    "Report": "baseline probe report_to",
    "Run": "output push_to_hub config check resume debug help",
}


class GroupedCommand(TyperCommand):
    """A command whose options are shown under these headings, in this order; its arguments stand before them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the arguments and the options."""
        records = {parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)}
        arguments = " ".join(records.keys() - " ".join(GROUPS.values()).split())
        for title, names in {"Arguments": arguments, **GROUPS}.items():
            if rows := [record for name in names.split() if (record := records.get(name))]:
                with formatter.section(title):
                    formatter.write_dl(rows)
