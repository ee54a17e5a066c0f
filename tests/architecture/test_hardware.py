"""The rule on hardware names finds what is planted, and exempts a line only for a reason."""

import ast
from pathlib import Path

import pytest
from architecture import hardware, rules

import parity


@pytest.fixture
def found(tmp_path: Path):
    """What the rule finds in a module of this name and source."""

    def check(source: str, name: str = "training/trainer") -> list[str]:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return hardware.hardware_names(rules.Tree(tmp_path))

    return check


PLANTED = [
    "d = 'cuda'\n",
    'd = "npu"\n',
    "d = 'cuda:0'\n",
    "d = f'cuda:{rank}'\n",
    "d = f'{kind}_npu'\n",
    "d = b'hip'\n",
    "backend = 'cpu:gloo,cuda:nccl'\n",
    "t.cuda()\n",
    "torch.npu.synchronize()\n",
    "torch.version.hip\n",
    "is_npu_available()\n",
    "x.isCudaDevice\n",
    "D = {'npu': 1}\n",
    "def f(use_cuda): ...\n",
    "f(cuda=True)\n",
    "def to_cuda(): ...\n",
    "class CudaTrainer: ...\n",
    "import torch_npu\n",
    "import torch.cuda\n",
    "from torch.cuda import Stream\n",
    "from torch import cuda\n",
    "from parity.platforms.cuda import CudaPlatform\n",
    "import pynvml as gpus\n",
    "import x as hip\n",
    "match vendor:\n    case 'amd': ...\n",
    "CUDA_VISIBLE_DEVICES = 1\n",
    "v = 'HIP_VISIBLE_DEVICES'\n",
    "v = 'ROCR_VISIBLE_DEVICES'\n",
    "v = 'ASCEND_RT_VISIBLE_DEVICES'\n",
    "v = 'RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES'\n",
    "v = 'NCCL_CUMEM_ENABLE'\n",
    "raise E('needs an NVIDIA card')\n",
    "subprocess.run(['nvidia-smi'])\n",
    "x = '''\n  cuda\n'''\n",
]


@pytest.mark.parametrize("source", PLANTED)
def test_a_planted_name_is_found_once_and_only_outside_platforms(found, source: str):
    (wrong,) = found(source)
    assert wrong.startswith("training.trainer:")
    assert "ask the platform" in wrong


@pytest.mark.parametrize("source", PLANTED)
def test_platforms_may_name_hardware(found, source: str):
    assert found(source, "platforms/telemetry/some") == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Runs on cuda."""\n',
        'class A:\n    """Not on an npu."""\n\n    x: int\n    """Of the hip build."""\n',
        "x = 1  # cuda\n",
        "order = 'ascending'\n",
        "word = 'ship chip hippo nvidiafied barracuda'\n",
        "wheel = 'manylinux_amd64'\n",
        "devices = platform.device_count()\n",
    ],
)
def test_prose_and_words_that_only_contain_a_name_are_fine(found, source: str):
    assert found(source) == []


@pytest.mark.parametrize("source", PLANTED)
def test_a_line_with_a_reason_is_exempt(found, source: str):
    lines = source.splitlines()
    mark = "  # hardware name: the reason\n"
    place = 1 if lines[0].startswith("match") else len(lines) - 1
    lines[place] += mark.rstrip("\n")
    assert found("\n".join(lines) + "\n") == []


def test_an_exemption_holds_for_its_own_line_only(found):
    (wrong,) = found("a = 'cuda'  # hardware name: a reason\nb = 'cuda'\n")
    assert wrong.startswith("training.trainer:2 names cuda")


def test_an_exemption_without_a_reason_is_none(found):
    for comment in ("# hardware name", "# hardware name:", "# hardware name:   "):
        wrong = found(f"a = 'cuda'  {comment}\n")
        assert len(wrong) == 2
        assert any("without a reason" in each for each in wrong)


def test_an_exemption_that_matches_nothing_any_more_is_found(found):
    (wrong,) = found("a = 'cpu'  # hardware name: there was one\n")
    assert "names no hardware" in wrong


def test_an_exemption_in_a_string_is_no_exemption(found):
    assert len(found("a = 'cuda # hardware name: sly'\n")) == 1


def test_all_names_of_a_line_are_told_together(found):
    (wrong,) = found("a = torch.cuda.nccl if vendor == 'amd' else 'npu'\n")
    assert "names amd, cuda, nccl, npu" in wrong


def test_every_exemption_of_the_package_is_a_comment_on_code():
    """What is exempt is visible here, so that the list is read when it grows."""
    exempt = [
        path
        for path in Path(parity.__file__).parent.rglob("*.py")
        if hardware.MARK in path.read_text(encoding="utf-8")
    ]
    for path in exempt:
        assert "platforms" not in path.parts, f"{path} may name hardware as it is"
        assert ast.parse(path.read_text(encoding="utf-8")).body
