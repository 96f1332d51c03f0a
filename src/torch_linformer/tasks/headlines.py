"""The scores that head the report of each task; in a file of their own, so that reading them imports nothing."""

HEADLINES = {
    "classify": ("accuracy", "macro_f1"),
    "multilabel": ("micro_f1", "macro_f1"),
    "regress": ("mse", "spearman"),
    "embed": ("ndcg_at_10", "recall_at_10"),
    "token-classify": ("f1", "accuracy"),
    "qa": ("exact_match", "f1"),
    "mlm": ("perplexity", "bits_per_byte"),
    "clm": ("perplexity", "bits_per_byte"),
    "seq2seq": ("chrf", "rouge_l"),
}
