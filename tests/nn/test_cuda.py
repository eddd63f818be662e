"""The same networks on an accelerator; skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import gradcheck

import notsodeep as nsd
from helpers import tolerance, ulps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def inputs(n: int = 64, p: int = 10, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(0), dtype=dtype) / p**0.5


def models() -> dict[str, nsd.nn.Model]:
    return {
        "deq": nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 10, 128, 3, solver=nsd.nn.SolverOptions(tol=1e-6)),
        "enn": nsd.nn.ENN(nsd.ENN(["leaky_relu", "tanh"]), 10, 128, 3),
    }


@pytest.mark.parametrize("name", ["deq", "enn"])
def test_same_numbers_as_on_the_cpu(name: str) -> None:
    here = models()[name]
    there = copy.deepcopy(here).to("cuda")
    torch.testing.assert_close(
        there(inputs().cuda()).cpu(), here(inputs()), rtol=ulps(1024, torch.float32), atol=ulps(1024, torch.float32)
    )
    built = type(here)(here.spec, 10, 128, 3, device="cuda")
    assert torch.equal(built.readout.cpu(), here.readout)  # one seed, the same weights everywhere


@pytest.mark.parametrize("solver", ["auto", "picard", "anderson"])
def test_gradcheck(solver: str) -> None:
    options = {"dtype": torch.float64, "device": "cuda", "solver": nsd.nn.SolverOptions(solver, 1e-13)}
    model = nsd.nn.DEQ(nsd.DEQ("silu", 0.2), 3, 6, 2, **options)
    assert gradcheck(model, (inputs(3, 3, torch.float64).cuda().requires_grad_(),), check_forward_ad=True)


def test_training_with_checkpoints(tmp_path) -> None:
    X = inputs(300)
    y = (X[:, 0] > 0).long()
    model = models()["deq"].cuda()
    history = nsd.nn.fit(model, (X, y), epochs=30, lr=1.0, checkpoint=tmp_path / "run.safetensors")
    assert model.readout.device.type == "cuda"
    assert history.last.accuracy > 0.85
    again = models()["deq"].cuda()
    nsd.nn.fit(again, (X, y), epochs=30, lr=1.0, checkpoint=tmp_path / "run.safetensors")
    assert torch.equal(again.readout, model.readout)
    nsd.nn.save(model, tmp_path / "model.safetensors")
    loaded = nsd.nn.load(tmp_path / "model.safetensors", device="cuda")
    assert torch.equal(loaded(X.cuda()), model(X.cuda()))


def test_autocast_and_compile() -> None:
    model = models()["deq"].cuda()
    x = inputs().cuda()
    exact = model.features(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(model.features(x), exact)
        model(x).float().square().sum().backward()
    torch.testing.assert_close(
        torch.compile(model)(x), model(x), rtol=ulps(1024, torch.float32), atol=ulps(1024, torch.float32)
    )


def test_a_replacement_lives_on_the_device() -> None:
    model, rows = models()["deq"].cuda(), inputs(4000)
    found = nsd.replace(model, rows[:2000], calibration=rows[2000:], disagreement=0.05, progress=False)
    assert found.student.hidden.weight.is_cuda
    assert found(rows.cuda()).is_cuda
    assert found.measure(rows[:128].cuda()).ratio > 0


@pytest.mark.parametrize("method", ["sgd", "adam"])
def test_recorded_epochs_are_those_of_the_cpu(method: str) -> None:
    """Readouts of several networks, recorded and replayed on the card."""
    from studies._readouts import train_readouts

    features = torch.randn(3, 70, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(70) % 4
    options = ({method: 0.1}, [0, 1, 0])
    here = train_readouts(features, y, 4, *options, epochs=5, batch_size=16)
    there = train_readouts(features.cuda(), y.cuda(), 4, *options, epochs=5, batch_size=16)
    torch.testing.assert_close(there.cpu(), here, rtol=ulps(1024, torch.float32), atol=ulps(128, torch.float32))


@pytest.mark.parametrize(("phi", "kernel"), [("tanh", "ck"), ("relu", "ntk")])
def test_one_layer_twins(phi: str, kernel: str) -> None:
    """Conditioned units move with the model, and train."""
    twin = nsd.match_one_layer(nsd.DEQ(phi, 0.2), kernel)
    here = nsd.nn.ENN(twin, 10, 128, 3, init="orthogonal")
    there = copy.deepcopy(here).to("cuda")
    torch.testing.assert_close(
        there(inputs().cuda()).cpu(), here(inputs()), rtol=ulps(1024, torch.float32), atol=ulps(1024, torch.float32)
    )
    built = nsd.nn.ENN(twin, 10, 128, 3, init="orthogonal", device="cuda")
    torch.testing.assert_close(
        built(inputs().cuda()).cpu(), here(inputs()), rtol=ulps(1024, torch.float32), atol=ulps(1024, torch.float32)
    )
    for model, x in ((here, inputs()), (there, inputs().cuda())):
        model(x).square().mean().backward()
    trained = [(a, b) for a, b in zip(there.parameters(), here.parameters(), strict=True) if b.requires_grad]
    assert trained  # the readout at least: a twin of the CK has frozen weights
    for a, b in trained:
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=tolerance(torch.float32), atol=ulps(128, torch.float32))
    X = inputs(dtype=torch.float64).cuda()
    torch.testing.assert_close(
        twin.kernel_matrix(X).cpu(), twin.kernel_matrix(X.cpu()), rtol=tolerance(), atol=tolerance()
    )
