"""The documents that answers are asked for, read from files as often as they are needed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from torch_linformer.data import windows
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.records import Record
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, Reads, documents_of
from torch_linformer.inference.document_model import in_groups
from torch_linformer.inference.output_parts import EVERYTHING, Gap

_LONGER = 10 * windows.FEW_TOKENS  # characters, which have that many tokens
_SPARED = 100  # longer texts, which may all stand first
_COUNTED = 1000  # texts, about, whose tokens are counted


@dataclass(frozen=True)
class InputDocuments:
    """The documents of some files, which any process that finds these can read, again and again.

    Attributes:
        files: files and folders, "-" is standard input.
        record: what is read of a row.
        options: what the user says of the files.
        question: asked of every document.
        batch_size: windows of a batch, for which documents of similar lengths are read ahead.
        reads: whether the model finds a token in each of some texts; one without counts as empty.
        keep_empty: whether documents without text are among them.
    """

    files: tuple[str, ...]
    record: Record
    options: DataOptions
    question: str | None
    batch_size: int
    reads: Reads
    keep_empty: bool = False

    def groups(self, report: ReadReport, gaps: Sequence[Gap] = EVERYTHING) -> Iterator[list[Document]]:
        """The documents of the gaps, some batches at a time; those of a group have the same fields.

        A group depends on nothing before its first document, so that a run that goes on at one makes the same groups.
        """
        what = self.files, self.record, self.options, report, self.question
        documents = documents_of(*what, keep_empty=self.keep_empty, reads=self.reads)
        done = 0
        for first, end in gaps:
            span = islice(documents, first - done, None if end is None else end - done)
            for _, alike in groupby(span, lambda document: [field is None for field in document]):
                yield from in_groups(alike, self.batch_size)
            done = first if end is None else end

    def ask_of_lines(self, num_tokens: Callable[[Sequence[str]], Sequence[int]]) -> list[str]:
        """What :func:`~torch_linformer.data.windows.ask_of_lines` asks of the first texts, of which a part is counted.

        It reads no further than shows that many of them are longer.
        """
        report = ReadReport(on_bad=lambda where, problem: None)
        texts, longer = list[str](), 0
        for document in islice(documents_of(self.files, self.record, self.options, report), windows.MANY_TEXTS):
            longer += len(document.text) > _LONGER
            if longer > _SPARED + (1 - windows.NEARLY_ALL) * len(texts):
                return []
            texts.append(document.text[:_LONGER])
        if len(texts) < windows.MANY_TEXTS:
            return []
        return windows.ask_of_lines(len(texts), num_tokens(texts[:: -(-len(texts) // _COUNTED)]), first=True)
