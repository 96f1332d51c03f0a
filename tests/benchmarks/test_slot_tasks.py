"""The comparison of slots: its models, and one small run of its command."""

import json

import pytest
import torch
import typer

from learning import chosen
from slot_tasks import GAP, SHORTEST, STAGES, TASKS, VARIANTS, build, groups, main


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_window_alone_cannot_reach_the_needle(variant):
    torch.manual_seed(0)
    length = GAP + 32
    model = build(TASKS["needle"], variant, length)
    words = torch.randn(2, length, model.config.hidden_size, requires_grad=True)
    model(inputs_embeds=words).logits.sum().backward()
    far = words.grad[:, GAP + 1 :]
    assert words.grad[:, GAP].any()
    assert far.any() == (variant != "window")


@pytest.mark.parametrize(("variant", "rate"), [("linear", 0.1), ("dynamic-window", 3.0)])
def test_every_parameter_is_in_one_group_and_those_of_slots_have_their_rate(variant, rate):
    model = build(TASKS["lookup"], variant, 160)
    others, slots = groups(model, 0.5)
    assert sum(weight.numel() for group in (others, slots) for weight in group["params"]) == model.num_parameters()
    assert (others["lr"], slots["lr"]) == (0.5, 0.5 * rate)
    assert len(slots["params"]) == (8 if variant == "dynamic-window" else 4)


def test_rows_grow_in_stages():
    assert sum(STAGES.values()) == pytest.approx(1)
    lengths = [TASKS["needle"].length_at(progress, 4096) for progress in (0.01, 0.4, 0.5, 0.6, 0.75, 1.0)]
    assert lengths == [256, 256, 512, 1024, 2048, 4096]
    assert TASKS["needle"].length_at(0.01, 1024) == SHORTEST
    assert TASKS["listops"].length_at(0.01, 2048) == 2048


def test_an_unknown_name_is_refused():
    with pytest.raises(typer.BadParameter, match="'haystack' is none of lookup, needle, listops"):
        chosen("needle,haystack", TASKS, "--tasks")


def test_a_stopped_command_goes_on_and_reports_all_runs(tmp_path, capsys):
    def run() -> tuple[list[dict], str]:
        small = {"length": 128, "steps": 2, "batch": 2, "rows": 16}
        main(tmp_path, tasks="needle,lookup", variants="full,dynamic-window", seeds=1, **small)
        return [
            json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()
        ], capsys.readouterr().out

    runs, _ = run()
    assert [(each["task"], each["variant"], each["slots"]) for each in runs] == [
        ("needle", "full", None),
        ("needle", "dynamic-window", 8),
        ("lookup", "full", None),
        ("lookup", "dynamic-window", 8),
    ]
    table = (tmp_path / "results.md").read_text()
    assert table.count("| full attention |") == table.count("one P a head + window |") == 2
    figure = (tmp_path / "curves.png").read_bytes()
    assert figure.startswith(b"\x89PNG")
    lines = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[:-1]))
    again, screen = run()
    assert "lookup dynamic-window 0: step 2" in screen and "needle" not in screen
    assert [each["accuracy"] for each in again] == [each["accuracy"] for each in runs]
    assert run() == (again, "")
