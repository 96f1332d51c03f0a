"""The words of a search: which tokens count as one, rows of their counts, and weights by documents and queries."""

import heapq
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from torch_linformer.models.lexical_vector import NOTHING, LexicalVector
from torch_linformer.tasks.retrieval_metrics import SCALE, Judgments

STEPS, BATCH, LEARNING_RATE = 200, 64, 0.03
NEAR_IDF = 20.0  # how much it costs to leave it: less misleads where queries are of other packages (docs/log.md)
MOST_DOCUMENTS = 2000  # that weights are learned from


def know_words(lexical: LexicalVector, tokenizer: PreTrainedTokenizerFast) -> None:
    """Tell a lexical part what the tokens of a tokenizer count as, and which of them begin a word.

    Tokens of the same letters count as one, whatever their case and the space before them; special tokens and
    punctuation count for nothing.
    """
    lexical.reset_parameters()
    special, same, size = set(tokenizer.all_special_ids), dict[str, int](), min(len(lexical.counts_as), len(tokenizer))
    decoder, tokens = tokenizer.backend_tokenizer.decoder, tokenizer.convert_ids_to_tokens(list(range(size)))
    texts = tokens if decoder is None else [decoder.decode([token]) for token in tokens]
    plain = next((token for token, text in zip(tokens, texts, strict=True) if text.strip().isalnum()), "")
    for number, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        letters = text.strip().lower()
        if number in special or all(unicodedata.category(letter)[0] in "PZC" for letter in letters):
            continue
        # What is no text of its own, a part of a character, is told apart by the token.
        lexical.counts_as[number] = same.setdefault(token if "\ufffd" in letters else letters, number)
        if decoder is not None:
            lexical.begins[number] = decoder.decode([plain, token])[len(decoder.decode([plain])) :][:1].isspace()


def counts_of(lexical: LexicalVector, rows: Iterable[Sequence[int]]) -> Any:
    """1 + ln of how often each row of token ids has each feature, sparse, ``(rows, features)``."""
    columns = []
    for ids in rows:
        features, real = lexical.features(torch.tensor([list(ids)], dtype=torch.long))
        columns.append(features[real].numpy())
    ends = np.cumsum([0, *map(len, columns)])
    flat = np.concatenate([np.empty(0, dtype=np.int64), *columns])
    counts = sparse.csr_matrix((np.ones(len(flat)), flat, ends), shape=(len(columns), len(lexical.weights)))
    counts.sum_duplicates()
    counts.data = 1 + np.log(counts.data)
    return counts


def word_rows(lexical: LexicalVector, counts: Any) -> Any:
    """x of length 1 of rows with these counts, sparse, ``(rows, features)``: what a sketch is of, with pairs."""
    return normalize(counts.multiply(lexical.weights.double().numpy()).tocsr())


def sketches_of(lexical: LexicalVector, counts: Any) -> Any:
    """What :meth:`LexicalVector.sketch` gives of rows with these counts, sparse, ``(rows, width)``."""
    size, columns = len(lexical.columns), lexical.columns.numpy()
    signed = (lexical.signs * lexical.weights[:size]).double().numpy()
    to_columns = sparse.csr_matrix((signed, (np.arange(size), columns)), shape=(size, lexical.width))
    return normalize(counts.tocsc()[:, :size].tocsr() @ to_columns)


def fit_vector(lexical: LexicalVector, counts: Any, theta: np.ndarray | None = None) -> None:
    r"""Give features the weights that tell documents like these apart, and columns that disturb little.

    .. math:: w_f = e^{\theta_f} \ln \frac{1 + n}{1 + n_f}

    for n documents, :math:`n_f` of which have feature f. (The 1 that scikit-learn adds to the logarithm keeps the
    weight of words that every document has, which only disturb a sketch.)

    Two features f and g in a column disturb a product by about :math:`\ell_f \ell_g`, where :math:`\ell` is the mean of
    :math:`x_f^2 / \lVert x \rVert_2^2` over the documents. So each feature, those of the largest :math:`\ell` first,
    goes to the column with the least sum of them so far (Graham 1969, longest processing time first): what weighs much
    shares its column with little.

    Args:
        lexical: is changed; it has to :func:`know_words`.
        counts: of documents, by :func:`counts_of`.
        theta: of :func:`learn_weights`; None for 0.
    """
    idf = np.log((1 + counts.shape[0]) / (1 + counts.getnnz(axis=0)))
    weights = idf * (1.0 if theta is None else np.exp(theta))
    sketched = counts.tocsc()[:, : len(lexical.columns)].multiply(weights[: len(lexical.columns)]).tocsr()
    loads = np.asarray(normalize(sketched).power(2).mean(axis=0)).ravel()
    met = np.flatnonzero(loads)
    # The columns of tokens that no document has are filled evenly, too; those of words stay hashes.
    unmet = np.setdiff1d(lexical.counts_as[lexical.counts_as != NOTHING].numpy(), met)
    filled, seldom = np.concatenate([met, unmet]), loads[met].min(initial=1.0) / 2
    loads = np.maximum(loads[filled], seldom)
    sums, column_of = [(0.0, column) for column in range(lexical.width)], [0] * len(loads)
    for number in np.argsort(-loads, kind="stable").tolist():
        load, column_of[number] = sums[0]
        heapq.heapreplace(sums, (load + loads[number], column_of[number]))
    with torch.no_grad():
        lexical.weights.copy_(torch.from_numpy(weights))
        lexical.columns[torch.from_numpy(filled)] = torch.tensor(column_of)


def learn_weights(documents: Any, queries: Any, judgments: Judgments, seed: int) -> np.ndarray:
    r"""The logarithms :math:`\theta` of factors of features with which queries find their documents.

    They have the least :func:`surprise` of the cosines of x e^θ, of queries and documents, times a scale that is
    learned too, plus :math:`20 \lVert \theta \rVert^2 / Q` for Q queries: a feature stays as it is unless several
    queries tell otherwise.

    Args:
        documents: their features x, sparse, ``(D, F)``; of more than 2,000 that many are drawn.
        queries: likewise, ``(Q, F)``.
        judgments: which documents each query should find.
        seed: of what is drawn.
    """
    drawn = np.sort(np.random.default_rng(seed).permutation(documents.shape[0])[:MOST_DOCUMENTS])
    judgments = judgments.among(drawn, np.arange(len(judgments.queries)))
    asked = np.flatnonzero(judgments.wanted > 0)
    learned = np.zeros(documents.shape[1])
    used = np.flatnonzero(queries.tocsr()[asked].getnnz(axis=0))  # only these can learn
    if not len(used):
        return learned
    documents, queries = documents.tocsr()[drawn], queries.tocsr()
    words = documents[:, used].tocoo()
    indices = torch.from_numpy(np.stack([words.row, words.col]).astype(np.int64))
    values = torch.from_numpy(words.data).float()
    known = torch.sparse_coo_tensor(indices, values, words.shape, check_invariants=True).coalesce()
    squares = (known * known).coalesce()
    whole, part = (np.asarray(rows.power(2).sum(axis=1)).ravel() for rows in (documents, words))
    others = torch.from_numpy(whole - part).float()
    queries = queries[:, used]
    theta = torch.zeros(len(used), requires_grad=True)
    scale = torch.tensor(np.log(SCALE), dtype=torch.float32, requires_grad=True)
    optimizer = torch.optim.Adam([theta, scale], lr=LEARNING_RATE)
    draws = np.random.default_rng(seed)
    for _ in range(STEPS):
        rows = draws.permutation(asked)[:BATCH]
        relevant, candidates = map(torch.from_numpy, judgments.of(rows))
        factors = (2 * theta).exp()
        asking = torch.from_numpy(queries[rows].toarray()).float()
        of_queries = (asking.square() @ factors).clamp(min=1e-12).sqrt()
        of_documents = (squares @ factors + others).clamp(min=1e-12).sqrt()
        cosines = torch.sparse.mm(known, (asking * factors).T).T / (of_queries[:, None] * of_documents)
        loss = surprise(cosines * scale.exp(), relevant, candidates)
        loss = loss + NEAR_IDF * theta.square().sum() / len(asked)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    learned[used] = theta.detach().double().numpy()
    return learned


def surprise(scores: Tensor, relevant: Tensor, candidates: Tensor) -> Tensor:
    """How surprising it is that a query finds one of its documents among the candidates, in nats; all ``(Q, D)``."""
    chosen, among = (scores.masked_fill(~kept, float("-inf")).logsumexp(dim=1) for kept in (relevant, candidates))
    return (among - chosen).mean()
