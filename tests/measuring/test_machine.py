import platform

import torch

from torch_linformer.measuring.machine import machine_facts, package_versions


def test_the_facts_of_a_machine():
    facts = machine_facts("cpu")
    assert facts["device"] == "cpu" and facts["Python"] == platform.python_version()
    assert int(facts["cores"]) >= 1 and facts["threads"] == str(torch.get_num_threads())
    assert facts["processor"] and facts["memory"].endswith("B")


def test_versions_of_what_is_installed():
    assert package_versions(("torch", "no-such-package-anywhere")) == {"torch": torch.__version__}
