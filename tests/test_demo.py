"""The demo tells the truth, and its report is one legible file, also in a real browser."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from rich.console import Console

import notsodeep as nsd
from notsodeep import demo, report
from notsodeep._files import write_text

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"),
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The demo, small: what it returned, what it printed, where the report lies."""
    folder = tmp_path_factory.mktemp("demo")
    tiny = demo.DemoSize(100, 80, (16, 64), 2, (32, 128), 3)
    patch = pytest.MonkeyPatch()
    patch.setattr(demo.DemoSize, "quick", staticmethod(lambda: tiny))
    console = Console(record=True, width=100, file=io.StringIO())
    found = demo.main(folder, console, quick=True)
    patch.undo()
    return found, console.export_text(), folder / "report.html"


def test_the_demo_finds_twins_that_are_nearer_than_plain_networks(shown):
    found, _, _ = shown
    assert [(c.data, c.activation) for c in found.cases] == [
        ("mixture", "tanh"), ("mixture", "relu"), ("digits", "tanh"), ("digits", "relu"),
    ]  # fmt: skip
    for case in found.cases:
        if (case.data, case.activation) == ("digits", "relu"):
            # plain and homogeneous: one layer, which proves a bound instead of solving equations
            assert case.twin.deq == nsd.DEQ("relu", sigma_a2=0.2)
            assert case.twin.bound < 1e-3  # the demo's own tolerance
        else:
            assert case.twin.residual < 1e-9  # what every match promises
        distances = case.verified
        assert distances.distance < 0.5 * distances.plain_scaled_distance < 0.5 * distances.plain_distance
        assert case.widest.models == ("DEQ", "twin", "plain")
        # no test times anything: that the table shows the ratio of what was measured
        seconds = {m: [r.inference_seconds for r in case.widest.rows if r.model == m] for m in ("DEQ", "twin")}
        assert case.widest.speedup("twin") == pytest.approx(np.mean(seconds["DEQ"]) / np.mean(seconds["twin"]))
        assert min(*seconds["DEQ"], *seconds["twin"]) > 0.0
        # digits at width 64: well above chance, and the twin within reach of the DEQ
        assert case.widest.summary("twin", "accuracy")[0] > 0.8
    for spectrum in found.spectra:
        assert spectrum.verified.distance < 0.5 * spectrum.verified.plain_distance
        assert np.all(np.diff(spectrum.eigenvalues["DEQ"]) >= 0)
        assert spectrum.law.spikes
    assert -0.8 < found.gradients.slope < -0.2


def test_the_demo_prints_one_table(shown):
    _, text, path = shown
    assert text.count("tanh(0.9") == 2  # one layer of the DEQ's own kind
    assert text.count("scaled") >= 4
    assert text.count("leaky 1.226 / 0.754") == 1
    assert text.count("relu(w.x-t|x|), 6 t") == 1  # ReLU as it is, on the digits
    assert "theory -0.5" in text
    assert str(path.name) in text


def test_the_report_is_self_contained(shown):
    _, _, path = shown
    text = path.read_text()
    assert text.count("<svg ") == text.count("<figure>") == 2 + 4 + 4 + 1 + 1
    assert "<script" not in text
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\((?!#)", text)
    identifiers = re.findall(r'\bid="([^"]*)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', text)) <= set(identifiers)


def test_the_report_suits_phones_and_dark_rooms(shown):
    text = shown[2].read_text()
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text
    assert "fill: #000000" not in text
    assert "overflow-x: auto" in text


def test_no_temporary_files_are_left(shown):
    assert [p.name for p in shown[2].parent.iterdir()] == ["report.html"]


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("earlier")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")  # a lone surrogate cannot be encoded
    assert path.read_text() == "earlier"
    assert len(list(tmp_path.iterdir())) == 1


def test_text_is_escaped():
    drawn, _ = plt.subplots()
    assert "<b>" not in report.figure(drawn, "<b>", "a") + report.table(["<b>"], [["<b>"]]) + report.paragraph("<b>")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_a_real_browser_shows_the_report(shown, tmp_path, width, dark):
    path: Path = shown[2]
    picture = tmp_path / "page.png"
    flags = [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, 500)},3000"]
    flags += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    browser = subprocess.run(
        [str(BROWSER), *flags, f"--screenshot={picture}", path.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert browser.returncode == 0, browser.stderr[-2000:]
    assert "CONSOLE" not in browser.stderr
    pixels = plt.imread(picture)
    corner = pixels[3, 3, :3].mean()
    assert (corner < 0.3) == dark
    assert pixels[:, :, :3].std() > 0.02
