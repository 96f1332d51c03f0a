"""Help in groups: a command of many options shows them under headings, in plain text of any width."""

from typing import Any

from typer.core import TyperCommand

_GROUPS = {
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
GROUP_OF = {name: title for title, names in _GROUPS.items() for name in names.split()}


class GroupedCommand(TyperCommand):
    """A command whose options are shown under these headings; what is no option stands first, under "Arguments"."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the arguments and the options."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *_GROUPS)}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections[GROUP_OF.get(parameter.name or "", "Arguments")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
