"""How many documents and tokens a second do `linformer embed` and ONNX Runtime make vectors of, and the original?

    python benchmarks/throughput.py path/to/adapted --onnx path/to/exported --original path/to/all-MiniLM-L6-v2

Every contender gets the same made texts of so many tokens by the original's tokenizer, and ends with a vector for each:

- ``tiny``: an untrained model of ``linformer train --size tiny`` with the tokenizer of the adapted one;
- ``adapted``: a folder of ``linformer adapt``, by the `Embedder` that ``linformer embed`` runs;
- ``adapted, ONNX Runtime``: the file of ``linformer export``, with the same tokenizer and batches;
- ``original in chunks``: ``SentenceTransformer.encode`` of pieces as long as the original reads, and their mean;
- ``frozen reading``: the original in windows of as many tokens, as ``linformer train`` reads documents;
- ``adapted, training`` and ``original in chunks, training``: steps of AdamW over the same texts, by a sum of squares.

Times are those of the processor, of one thread: other work on the machine does not count, except where it takes memory
bandwidth and caches away. Contenders take turns, and the fastest of theirs counts.
"""

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from transformers import AutoModel

from torch_linformer import LinformerConfig, LinformerForSequenceClassification, LinformerModel
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.encoders.classes import windowed_config
from torch_linformer.encoders.positions import Positions
from torch_linformer.inference import Embedder
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.opening.load import load_config, load_model, load_tokenizer
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.reporting.report import markdown_table
from torch_linformer.training.kept_reading import AT_ONCE, pooled_states
from torch_linformer.training.sizes import SIZES

WORDS = ["rain", "cloud", "storm", "wind", "sun", "snow", "bread", "oven", "knife", "salt", "soup", "court", "judge"]
BATCH = 4
Vectors = Callable[[Sequence[str]], np.ndarray]


def main(
    adapted: Annotated[Path, typer.Argument(help="folder of linformer adapt")],
    onnx: Annotated[Path | None, typer.Option(help="folder of linformer export")] = None,
    original: Annotated[Path | None, typer.Option(help="folder of sentence-transformers")] = None,
    lengths: Annotated[str, typer.Option(help="tokens of a text")] = "512,4096,16384",
    tokens: Annotated[int, typer.Option(help="of all texts of a turn")] = 32_768,
    turns: Annotated[int, typer.Option(min=1, help="of each, after one with a single text")] = 3,
) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(str(adapted))
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, Vectors] = {
            "tiny": _embedder(_tiny(adapted, Path(folder))),
            "adapted": _embedder(str(adapted)),
        }
        if onnx is not None:
            contenders["adapted, ONNX Runtime"] = _by_onnx(onnx)
        if original is not None:
            contenders["original in chunks"] = _in_chunks(original)
            contenders["frozen reading"] = _frozen_reading(original)
            contenders["adapted, training"] = _trained(adapted)
            contenders["original in chunks, training"] = _trained_in_chunks(original)
        rows = []
        for length in map(int, lengths.split(",")):
            texts = [_text(tokenizer, length, seed) for seed in range(max(1, tokens // length))]
            for name, seconds in _fastest(contenders, texts, turns).items():
                speeds = [f"{len(texts) / seconds:,.2f}", f"{len(texts) * length / seconds:,.0f}"]
                rows.append([name, f"{length:,}", *speeds])
                print(*rows[-1], flush=True)
    versions = package_versions(["torch", "transformers", "onnxruntime", "sentence-transformers"])
    print("\n".join(f"{name}: {value}" for name, value in (machine_facts("cpu") | versions).items()))
    print(markdown_table(["", "tokens of a document", "documents/s", "tokens/s"], rows))


def _fastest(contenders: dict[str, Vectors], texts: Sequence[str], turns: int) -> dict[str, float]:
    """The seconds of each one's fastest turn, after one with a single text."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for vectors in contenders.values():
        vectors(texts[:1])
    for _ in range(turns):
        for name, vectors in contenders.items():
            begin = time.process_time()
            assert len(vectors(texts)) == len(texts)
            found[name].append(time.process_time() - begin)
    return {name: min(seconds) for name, seconds in found.items()}


def _text(tokenizer, length: int, seed: int) -> str:
    """A text of that many tokens, with the special ones: every word is one."""
    special = tokenizer.num_special_tokens_to_add()
    text = " ".join(random.Random(seed).choices(WORDS, k=length - special))
    assert len(tokenizer(text).input_ids) == length
    return text


def _embedder(folder: str) -> Vectors:
    return Embedder(folder, device="cpu", precision="fp32", batch_size=BATCH)


def _tiny(adapted: Path, folder: Path) -> str:
    config, size = load_config(str(adapted)), SIZES["tiny"]
    model = LinformerModel(
        LinformerConfig(
            vocab_size=config.vocab_size,
            hidden_size=size.hidden_size,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.feed_forward,
            max_position_embeddings=config.max_position_embeddings,
            k=256,
            position_embedding=size.position_embedding,
            pad_token_id=config.pad_token_id,
        )
    )
    model.save_pretrained(folder)
    load_tokenizer(str(adapted)).save_pretrained(folder)
    return str(folder)


def _by_onnx(folder: Path) -> Vectors:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    longest = load_config(str(folder)).max_position_embeddings
    encode = DocumentEncoder(load_tokenizer(str(folder)), longest)
    wanted = [given.name for given in session.get_inputs()]

    def vectors(texts: Sequence[str]) -> np.ndarray:
        found = []
        for start in range(0, len(texts), BATCH):
            ids = np.array(encode(texts[start : start + BATCH])["input_ids"], dtype=np.int64)  # all as long
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            found.append(session.run(["sentence_embedding"], {name: given[name] for name in wanted})[0])
        return np.concatenate(found)

    return vectors


def _in_chunks(folder: Path) -> Vectors:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")

    def vectors(texts: Sequence[str]) -> np.ndarray:
        pieces, counts = _pieces(texts, model.max_seq_length - 2)
        found = model.encode(pieces, batch_size=32, show_progress_bar=False)
        return np.stack([part.mean(0) for part in np.split(found, np.cumsum(counts)[:-1])])

    return vectors


def _pieces(texts: Sequence[str], room: int) -> tuple[list[str], list[int]]:
    """The pieces of all texts, of so many words, each of which is one token, and how many each text has."""
    words = [text.split() for text in texts]
    pieces = [[" ".join(row[start : start + room]) for start in range(0, len(row), room)] for row in words]
    return [piece for row in pieces for piece in row], [len(row) for row in pieces]


def _steps(model: torch.nn.Module, vectors_of: Callable[[Sequence[str]], torch.Tensor]) -> Vectors:
    """Steps of AdamW, of a batch each."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-6)

    def train(texts: Sequence[str]) -> np.ndarray:
        for start in range(0, len(texts), BATCH):
            vectors_of(texts[start : start + BATCH]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return np.zeros(len(texts))

    return train


def _trained(folder: Path) -> Vectors:
    model, tokenizer = load_model(str(folder)), load_tokenizer(str(folder))
    encode = DocumentEncoder(tokenizer, load_config(str(folder)).max_position_embeddings)

    def vectors_of(texts: Sequence[str]) -> torch.Tensor:
        ids = torch.tensor(encode(texts)["input_ids"])  # all as long
        states: torch.Tensor = model(ids).last_hidden_state
        return states.mean(dim=1)

    return _steps(model, vectors_of)


def _trained_in_chunks(folder: Path) -> Vectors:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")

    def vectors_of(texts: Sequence[str]) -> torch.Tensor:
        pieces, _ = _pieces(texts, model.max_seq_length - 2)
        vectors: torch.Tensor = model(model.preprocess(pieces))["sentence_embedding"]
        return vectors

    return _steps(model, vectors_of)


def _frozen_reading(folder: Path) -> Vectors:
    """What `train` makes of each document for its classifier, with the original's window."""
    encoder = AutoModel.from_pretrained(folder).eval()
    positions, tokenizer = Positions.of(encoder), load_tokenizer(str(folder))
    encode = DocumentEncoder(tokenizer, 2**20)
    before, after = encode.marks
    config = LinformerConfig(
        backbone_config=windowed_config(encoder, positions),
        read_window=sentence_settings(str(folder)).longest(positions.longest),
        exact_first=len(before),
        exact_last=len(after),
        pooling="mean",
    )
    model = LinformerForSequenceClassification(config).eval()
    model.linformer.body.load_state_dict(encoder.state_dict(), strict=False)  # without its pooler
    reading = pooled_states(model, tokenizer.pad_token_id, "cpu", "fp32")

    @torch.inference_mode()
    def vectors(texts: Sequence[str]) -> np.ndarray:
        rows, found = encode(texts)["input_ids"], []
        at_once = max(1, AT_ONCE // len(rows[0]))  # all as long
        for start in range(0, len(rows), at_once):
            ids = torch.tensor(rows[start : start + at_once])
            found += reading.read(ids, torch.ones_like(ids))
        return np.concatenate(found)

    return vectors


if __name__ == "__main__":
    typer.run(main)
