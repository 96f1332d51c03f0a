"""``make test DEVICE=...``: what is skipped there, and that no test which is not skipped takes a CPU for granted."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def is_about_the_cpu(node):
    """Whether a decorator, or what is assigned to ``pytestmark``, is ``pytest.mark.cpu``."""
    return any(ast.unparse(part) == "pytest.mark.cpu" for part in ast.walk(node))


def parts_for_any_device(tree):
    """Every node outside what is marked as about the CPU."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            if is_about_the_cpu(statement.value):
                return
        elif any(is_about_the_cpu(each) for each in getattr(statement, "decorator_list", [])):
            continue
        else:
            yield from ast.walk(statement)


def habit(call):
    """What a call takes for granted, or None."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    given = [ast.unparse(argument) for argument in call.args]
    if name == "Generator" and not given and not named:
        return "draws on a CPU"
    if named.get("device") == "'cpu'" or (name in ("autocast", "device") and "'cpu'" in given):
        return "names the CPU"
    if name == "from_numpy":
        return "makes a tensor of a CPU"
    if name == "numpy" and "force" not in named and not ast.unparse(call.func).endswith(".cpu().numpy"):
        return "reads a tensor of a CPU"
    return None


def habits(source):
    calls = (node for node in parts_for_any_device(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"line {call.lineno} {habit(call)}: {ast.unparse(call)}" for call in calls if habit(call)]


def test_no_test_takes_a_cpu_for_granted(any_device):
    files = [path for folder in any_device for path in (TESTS / folder).rglob("*.py")]
    found = {str(path.relative_to(TESTS)): habits(path.read_text(encoding="utf-8")) for path in files}
    assert len(files) > 50 and {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "call",
    [
        "torch.Generator()",
        "torch.zeros(3, device='cpu')",
        "torch.autocast('cpu', torch.bfloat16)",
        "torch.device('cpu')",
        "torch.from_numpy(x)",
        "x.detach().numpy()",
    ],
)
def test_what_takes_a_cpu_for_granted_is_found(call):
    function = f"def test():\n    {call}\n"
    assert len(habits(function)) == 1
    assert habits(f"@pytest.mark.cpu('oneDNN')\n{function}") == []
    assert habits(f"pytestmark = [pytest.mark.cpu('oneDNN')]\n{function}") == []


@pytest.mark.parametrize("call", ["x.cpu().numpy()", "x.numpy(force=True)", "torch.Generator(x.device)", "x.cpu()"])
def test_what_moves_a_tensor_is_left_alone(call):
    assert habits(f"def test():\n    {call}\n") == []


def run_tests(device, *files):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--device={device}", *files]
    return subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, stdin=subprocess.DEVNULL)


def test_what_is_skipped_says_why():
    """On a device of torch that is everywhere, and has no numbers."""
    done = run_tests("meta", "tests/functional/test_device_sizes.py", "tests/benchmarks/test_lines.py")
    assert done.returncode == 0 and " passed" not in done.stdout, done.stdout
    assert "about the CPU: its sizes, against those of all other devices" in done.stdout
    assert "only functional, fuzz, models, nn run on other devices than a CPU" in done.stdout


def test_a_device_that_is_not_there_is_an_error_in_one_line():
    done = run_tests("nowhere", "tests/functional/test_bounds.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.startswith("ERROR: --device nowhere: ") and done.stderr.strip().count("\n") == 0
