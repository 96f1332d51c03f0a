"""The words of a row, wherever they stand, counted, weighted and added up to logits: all from its token ids."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.padding import Padding

PRIME, BASE = 2**31 - 1, 1_000_003  # of the polynomial that stands for a spelling
LONGEST = 64  # letters of a word whose order counts
NOTHING = -1  # the spelling of a token without letters and digits, and the code of no feature
WORD, PAIR, CHARACTERS = 0, 1, 2  # kinds of features, which their codes end with
KINDS = 4  # that a code has room for
_SPACE = 32
_GRAMS = (2, 3, 4, 5)  # lengths of n-grams
_MULTIPLIERS = (998_244_353, 1_004_535_809)  # of the words of a pair; no sum of both leaves the range of int64


class Words(NamedTuple):
    """The features of rows: their codes ``(B, M)``, which of these a row has, the number of the word that each begins
    in, and the word that each token ``(B, N)`` belongs to, −1 for none."""

    codes: Tensor
    real: Tensor
    begins_in: Tensor
    of_tokens: Tensor


class LexicalHead(nn.Module):
    r"""A linear map of the TF-IDF of a row's words, made of nothing but token ids.

    .. math::
        z = \sum_{\text{kinds}} \frac{x}{\lVert x \rVert_2} W + b, \qquad
        x_f = \begin{cases} (1 + \ln c_f) \, \mathrm{idf}_f & c_f > 0 \\ 0 & c_f = 0 \end{cases}

    :math:`c_f` says how often a row has the feature f: a word, or a pair of words in a row, and with ``letters`` an
    n-gram of 2 to 5 characters of a word between two spaces. Words and their pairs are one kind, n-grams another.

    A word is a run of tokens that the tokenizer joins, told by its small letters: however it is divided, and whether it
    begins a sentence, it is the same word. It has the code of the polynomial :math:`\sum_j c_j \beta^j` modulo
    :math:`2^{31} - 1` of its characters c, which is put together from those of its tokens. Punctuation and special
    tokens end a word and count for nothing, as does padding, on any side. A row without words gives b.

    Args:
        vocab_size: token ids.
        features: rows of W.
        num_labels: logits of a row.
        letters: of the longest token, where n-grams count; 0 where they do not.

    Attributes:
        weight, bias: W ``(features, num_labels)`` and b; 0 until they are fitted.
        codes, idf: buffers ``(features,)``: what each is the feature of, rising, −1 for nothing; and its idf.
        spelling, sizes: buffers ``(vocab_size,)``: the polynomial of each token's letters, −1 for none; their number.
        joins: a bool buffer ``(2, vocab_size)``: whether a token continues the word of the token before it, and
            whether the token after it may continue its word. Two tokens are joined where both hold.
        letters: a buffer ``(vocab_size, letters)``, 0 after the last one; None without n-grams.
    """

    codes: Tensor
    idf: Tensor
    spelling: Tensor
    sizes: Tensor
    joins: Tensor
    powers: Tensor
    letters: Tensor

    def __init__(self, vocab_size: int, features: int, num_labels: int, letters: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, num_labels))
        self.bias = nn.Parameter(torch.empty(num_labels))
        self.register_buffer("codes", torch.empty(features, dtype=torch.long))
        self.register_buffer("idf", torch.empty(features))
        self.register_buffer("spelling", torch.empty(vocab_size, dtype=torch.long))
        self.register_buffer("sizes", torch.empty(vocab_size, dtype=torch.long))
        self.register_buffer("joins", torch.empty(2, vocab_size, dtype=torch.bool))
        self.register_buffer("powers", torch.empty(LONGEST, dtype=torch.long))
        self.register_buffer("letters", torch.empty(vocab_size, letters, dtype=torch.long) if letters else None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget what was fitted: no token has letters, and every logit is 0."""
        for tensor in (self.weight, self.bias, self.idf, self.sizes, self.joins):
            nn.init.zeros_(tensor)
        for tensor in (self.codes, self.spelling):
            nn.init.constant_(tensor, NOTHING)
        self.powers.copy_(torch.tensor([pow(BASE, place, PRIME) for place in range(LONGEST)]))
        if self.letters is not None:
            nn.init.zeros_(self.letters)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits ``(B, num_labels)`` of token ids ``(B, N)``; negative ids are padding, and where the mask is 0."""
        features, weights = self.weigh(self.words(input_ids, attention_mask))
        accurate = weights.dtype
        rows_begin = torch.arange(features.shape[0], device=features.device) * features.shape[1]
        logits = F.embedding_bag(
            features.flatten(),
            self.weight,
            rows_begin,
            mode="sum",
            per_sample_weights=weights.to(self.weight.dtype).flatten(),
        )
        return (logits + self.bias).to(accurate)

    def words(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Words:
        """The words, pairs and n-grams of token ids ``(B, N)``."""
        missing = input_ids < 0 if attention_mask is None else (input_ids < 0) | (attention_mask == 0)
        rows = Padding(missing)
        ids, real = rows.justify(input_ids).clamp(min=0), ~rows.trailing
        places = torch.arange(ids.shape[1], device=ids.device)
        spelling, (continues, continued) = self.spelling[ids], self.joins[:, ids]
        counts = real & (spelling != NOTHING)
        follows = counts & counts.roll(1, dims=1) & (places > 0)
        begins = counts & ~(follows & continues & continued.roll(1, dims=1))
        number = (begins.long().cumsum(dim=1) - 1).clamp(min=0)  # of each token's word
        sizes = torch.where(counts, self.sizes[ids], 0)
        before = sizes.cumsum(dim=1) - sizes
        none = torch.zeros_like(ids)
        in_word = before - none.scatter_add(1, number, torch.where(begins, before, 0)).gather(1, number)
        values = spelling * self.powers[in_word.clamp(0, LONGEST - 1)] % PRIME
        words = none.scatter_add(1, number, torch.where(counts, values, 0)) % PRIME
        having = places < begins.long().sum(dim=1, keepdim=True)
        one, other = _MULTIPLIERS
        # Rolled, not sliced, so that an exported program makes no exception of rows of one or two tokens.
        pairs = (words * one + words.roll(-1, dims=1) * other) % PRIME
        followed = having & having.roll(-1, dims=1) & (places + 1 < ids.shape[1])
        codes, known = [words * KINDS + WORD, pairs * KINDS + PAIR], [having, followed]
        begins_in = [places.expand_as(ids)] * 2
        if self.letters is not None:
            grams, real_grams, of_word = self._n_grams(ids, counts, begins, number)
            codes, known, begins_in = [*codes, grams], [*known, real_grams], [*begins_in, of_word]
        of_tokens = rows.restore(torch.where(counts, number, NOTHING).unsqueeze(-1)).squeeze(-1)
        return Words(torch.cat(codes, dim=1), torch.cat(known, dim=1), torch.cat(begins_in, dim=1), of_tokens)

    def _n_grams(self, ids: Tensor, counts: Tensor, begins: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The codes of n-grams, which of them there are, and the word of each."""
        spaces = torch.where(begins, _SPACE, 0).unsqueeze(-1)
        letters = torch.where(counts.unsqueeze(-1), self.letters[ids], 0)
        characters = torch.cat([spaces, letters], dim=-1).flatten(1)
        of_word = number.repeat_interleave(letters.shape[-1] + 1, dim=1)
        rows = Padding(characters == 0)
        characters, of_word = (F.pad(rows.justify(x), (0, max(_GRAMS))) for x in (characters, of_word))
        places = torch.arange(characters.shape[1], device=ids.device)
        characters = torch.where(places == rows.tokens, _SPACE, torch.where(places < rows.tokens, characters, 0))
        codes, known = [], []
        code, inside = characters, torch.zeros_like(characters, dtype=torch.bool)  # a space between two characters
        for length in _GRAMS:
            last = characters.roll(1 - length, dims=1)
            inside = inside | ((characters.roll(2 - length, dims=1) == _SPACE) & (length > 2))
            code = (code + last * self.powers[length - 1]) % PRIME
            known.append((characters > 0) & (last > 0) & ~inside & (places < characters.shape[1] - length))
            codes.append(code * KINDS + CHARACTERS)
        return torch.cat(codes, dim=1), torch.cat(known, dim=1), torch.cat([of_word] * len(_GRAMS), dim=1)

    def find(self, words: Words) -> Tensor:
        """The row of W of each code ``(B, M)``; as many as there are rows for what counts for nothing."""
        # torch.searchsorted, which is no operation of ONNX.
        place, step = torch.zeros_like(words.codes), 1 << (len(self.codes) - 1).bit_length()
        while step := step // 2:
            probe = place + step
            below = self.codes[probe.clamp(max=len(self.codes) - 1)] <= words.codes
            place = torch.where((probe < len(self.codes)) & below, probe, place)
        return torch.where(words.real & (self.codes[place] == words.codes), place, len(self.codes))

    def weigh(self, words: Words) -> tuple[Tensor, Tensor]:
        """The rows of W ``(B, M)`` and the :math:`x_f / \\lVert x \\rVert` of each: 0 where a feature is repeated, and
        for what does not count."""
        # Equal ones side by side, those that do not count last: no array has a column for every feature.
        features = self.find(words).sort(dim=1).values
        first = (features != features.roll(1, dims=1)) | (torch.arange(features.shape[1], device=features.device) == 0)
        group, accurate = first.long().cumsum(dim=1) - 1, torch.promote_types(self.idf.dtype, torch.float32)
        counts = torch.zeros_like(features).scatter_add(1, group, torch.ones_like(features)).gather(1, group)
        stands = first & (features < len(self.codes))
        features = torch.where(stands, features, 0)
        weights = torch.where(stands, (1 + counts.to(accurate).log()) * self.idf[features], 0.0)
        if self.letters is None:
            return features, F.normalize(weights, dim=-1)
        grams = self.codes[features] % KINDS == CHARACTERS
        return features, sum(F.normalize(weights.where(kind, 0.0), dim=-1) for kind in (grams, ~grams))  # type: ignore[return-value]

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Take this many token ids; those that are new have no letters."""
        new = vocab_size - len(self.spelling)
        self.spelling = F.pad(self.spelling, (0, new), value=NOTHING)
        self.sizes, self.joins = F.pad(self.sizes, (0, new)), F.pad(self.joins, (0, new))
        if self.letters is not None:
            self.letters = F.pad(self.letters, (0, 0, 0, new))
