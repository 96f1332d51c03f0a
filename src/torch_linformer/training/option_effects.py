"""Which options of a training have an effect for what."""

from torch_linformer.tasks.headlines import HEADLINES

TASKS = tuple(HEADLINES)
OF_TEXT = ("mlm", "clm")  # tasks that learn from plain text, all of it
OF_SLOTS = ("sharing", "projection", "slot_mass")  # options of slots that are made of whole documents
OF_TASKS = {  # options that only some tasks have
    **dict.fromkeys(("text_column", "label_column"), tuple(task for task in TASKS if task != "seq2seq")),
    **dict.fromkeys(("query_column", "document_column", "documents"), ("embed",)),
    "label_names": ("classify", "multilabel", "token-classify"),
    "question_column": ("qa",),
    "max_answer_length": ("qa",),
    "source_column": ("seq2seq",),
    "target_column": ("seq2seq",),
    "max_target_length": ("seq2seq",),
    "label_smoothing": ("seq2seq",),
    "packing": OF_TEXT,
    "whole_words": ("mlm",),
    "embeddings": ("classify", "multilabel", "regress"),
    "lexical": ("classify", "multilabel", "regress", "embed"),
    "lexical_width": ("embed",),
    "class_weights": ("classify",),
    "freeze": ("classify", "multilabel", "regress"),
    # Language modeling reads words off the embeddings, too.
    "freeze_layers": tuple(task for task in TASKS if task not in (*OF_TEXT, "seq2seq")),
    # The slots of a causal model are running means, and what is last changes with every token.
    **dict.fromkeys((*OF_SLOTS, "exact_last"), tuple(task for task in TASKS if task != "clm")),
    # Tasks that call the model once a step, and each time for whole documents.
    "compile": tuple(task for task in TASKS if task not in ("embed", "seq2seq")),
    "context_parallel": ("classify", "multilabel", "regress", "token-classify", "mlm"),
}
# Options that full attention does not have.
OF_LINFORMER = ("window", *OF_SLOTS, "exact_first", "exact_last", "context_parallel")
OF_ENCODERS = ("k", "window")  # also of an encoder of --from that is made linear here
OF_NEW_MODELS = {
    *(name for name in OF_LINFORMER if name not in (*OF_ENCODERS, "context_parallel")),
    "tokenizer",
    "attention",
    "activation_memory",
    "chunk_size",
    "embeddings",
    "size",
}
_READS_ALL = "which reads all of every document anyway"
NO_WINDOWS = {
    **dict.fromkeys(OF_TEXT, _READS_ALL),
    "seq2seq": "which writes one target for a document",
    "embed": "which makes one vector of what it reads of a document",
}
# Options of a training step by step.
OF_STEPS = (
    "freeze_layers",
    "epochs",
    "max_steps",
    "minutes",
    "patience",
    "learning_rate",
    "fsdp",
    "context_parallel",
    "compile",
)
