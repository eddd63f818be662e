"""The server answers those who know its address, on this machine, and questions alone."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import notsodeep as nsd
from helpers import printed
from notsodeep.explore import Explorer, page, sections, stored_page
from notsodeep.explore.controls import controls, names, network_of, settings_from

SHOWN = {section.name: section for section in sections.SECTIONS}


@pytest.fixture(scope="module")
def explorer():
    with Explorer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    """Return status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def numbers(server, **settings: str):
    query = "&".join(f"{name}={value}" for name, value in settings.items())
    status, _, text = ask(server, f"/{server.token}/numbers?{query}")
    return status, json.loads(text)


# ---- who is answered ---------------------------------------------------------------------------------------


def test_the_page_has_a_secret_address_on_this_machine(explorer):
    assert explorer.server_address[0] == "127.0.0.1"
    assert len(explorer.token) >= 32
    with Explorer() as other:
        assert other.token != explorer.token
    status, headers, text = ask(explorer, f"/{explorer.token}/")
    assert (status, text) == (200, page())
    assert headers["Referrer-Policy"] == "no-referrer"  # the secret stays here
    assert headers["X-Frame-Options"] == "DENY"


TOKEN = "{token}"
REFUSED = {
    "no token": ("GET", "/", {}, 403),
    "a wrong token": ("GET", "/" + "x" * 32 + "/numbers?section=code", {}, 403),
    "a part of the token": ("GET", "/{token:.31}/", {}, 403),
    "a token that is no text": ("GET", "/%ff%00/", {}, 403),
    "a foreign host": ("GET", "/{token}/", {"Host": "evil.example"}, 403),
    "a rebound name": ("GET", "/{token}/numbers?section=code", {"Host": "evil.example:{port}"}, 403),
    "another port": ("GET", "/{token}/", {"Host": "127.0.0.1:1"}, 403),
    "a foreign origin": ("GET", "/{token}/numbers?section=code", {"Origin": "https://evil.example"}, 403),
    "a file's origin": ("GET", "/{token}/numbers?section=code", {"Origin": "null"}, 403),
    "a body": ("GET", "/{token}/", {"Content-Length": "5"}, 413),
    "a body in parts": ("GET", "/{token}/", {"Transfer-Encoding": "chunked"}, 413),
    "a long address": ("GET", "/{token}/numbers?" + "x" * 3000, {}, 414),
    "a longer address": ("GET", "/{token}/numbers?" + "x" * 70000, {}, 414),
    "no address": ("GET", "http://[/{token}/", {"Host": "127.0.0.1:{port}"}, 400),
    "posting": ("POST", "/{token}/numbers?section=code", {}, 405),
    "putting": ("PUT", "/{token}/", {}, 405),
    "deleting": ("DELETE", "/{token}/", {}, 405),
    "asking for options": ("OPTIONS", "/{token}/", {}, 405),
    "a file above": ("GET", "/{token}/../../../../etc/passwd", {}, 404),
    "an encoded file above": ("GET", "/{token}/%2e%2e/%2e%2e/etc/passwd", {}, 404),
    "a file of the package": ("GET", "/{token}/page.js", {}, 404),
}


@pytest.mark.parametrize("what", REFUSED)
def test_others_are_refused_with_a_reason(explorer, what):
    method, path, headers, expected = REFUSED[what]
    given = {name: value.format(port=explorer.server_port) for name, value in headers.items()}
    status, answered, text = ask(
        explorer, path.replace(TOKEN, explorer.token).format(token=explorer.token), method, **given
    )
    assert status == expected
    assert answered["Content-Type"] == "application/json"
    said = json.loads(text)["error"]
    assert len(said) > 10
    assert explorer.token not in said
    assert "root:" not in text


def test_noise_does_not_stop_the_server(explorer):
    for noise in (b"\x00\xff\x16\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", explorer.server_port), timeout=5) as client:
            client.sendall(noise)
    assert numbers(explorer, section="code")[0] == 200


WRONG = {
    "section=nothing": "section is one of",
    "": "section is one of",
    "section=kernel&activation=__import__": "activation is one of",
    "section=kernel&feedback=1e9": "feedback is one of",
    "section=kernel&feedback=nan": "feedback is one of",
    "section=spectrum&n=100000000": "n is one of",
    "section=kernel&n=200": "unknown setting 'n'",  # it does not need it
    "section=kernel&kernel=ck&kernel=ntk": "given twice",
    "section=kernel&%00=%ff": "unknown setting",
    "section=" + "x" * 500: "section is one of",
}


@pytest.mark.parametrize("query", WRONG)
def test_wrong_settings_are_explained(explorer, query):
    status, _, text = ask(explorer, f"/{explorer.token}/numbers?{query}")
    assert status == 400
    said = json.loads(text)["error"]
    assert WRONG[query] in said
    assert len(said) < 400


def test_a_failure_is_an_answer(explorer, monkeypatch):
    monkeypatch.setattr(explorer, "handle_error", lambda *_: None)

    def fail(settings):
        raise nsd.errors.ConvergenceError("this did not converge")

    for failure, said in ((fail, "this did not converge"), (lambda _: {}["x"], "unexpectedly")):
        broken = sections.Section("code", "", (), failure)
        monkeypatch.setattr("notsodeep.explore.server.SECTIONS", (broken,))
        status, document = numbers(explorer, section="code")
        assert status == 500
        assert said in document["error"]


def test_it_ends_with_an_interrupt():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "notsodeep", "explore", "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        # a shell that starts the tests in the background lets them, and all that they start, ignore an interrupt
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert "http://127.0.0.1:" in process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (0, "", "")


# ---- what is answered --------------------------------------------------------------------------------------


def test_every_section_says_something_in_words(explorer):
    for name in SHOWN:
        status, document = numbers(explorer, section=name, activation="tanh")
        assert status == 200
        assert document["message"].endswith(".")
        assert "nan" not in json.dumps(document).lower()
        for chart in document.get("charts", ()):
            assert all(len(curve["y"]) == len(chart["x"]) for curve in chart["curves"])


def test_the_kernels_are_those_of_the_library(explorer):
    _, document = numbers(explorer, section="kernel", activation="tanh", kernel="ntk", ratio="0.5", scale="0.75")
    kernel, distance = document["charts"]
    turn = np.radians(kernel["x"])
    x, y = np.array([[0.75, 0.0]]), 0.375 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    deq = nsd.DEQ("tanh", sigma_a2=0.2)
    shown = {curve["role"]: np.array(curve["y"]) for curve in kernel["curves"]}
    assert shown["deq"] == pytest.approx(nsd.ntk(deq, x, y)[0], rel=printed(4))
    assert shown["plain"] == pytest.approx(nsd.ntk(nsd.ENN(["tanh"]), x, y)[0], rel=printed(4))
    errors = {curve["role"]: np.array(curve["y"]) for curve in distance["curves"]}
    assert errors["twin"].max() <= distance["levels"][0]["y"]  # the bound
    assert errors["twin"].max() < errors["scaled"].max() < errors["plain"].max()


def test_the_law_is_that_of_the_library(explorer):
    _, document = numbers(
        explorer, section="spectrum", activation="relu", kernel="ntk_frozen", readout="pre-activation"
    )
    chart = document["charts"][0]
    settings = settings_from({"kernel": "ntk_frozen", "readout": "pre-activation"}, SHOWN["spectrum"].needs)
    law = nsd.spectral_law(network_of(settings), sections.mixture_of(settings), n=200, kernel="ntk_frozen")
    x, y = (np.array(values, dtype=float) for values in (chart["x"], chart["curves"][0]["y"]))
    inside = np.isfinite(y) & (y > 0.05 * np.nanmax(y))
    assert y[inside] == pytest.approx(law.density(x[inside]), rel=0.01)  # five digits of x, steep at the edges
    assert [mark["x"] for mark in chart["marks"]] == pytest.approx([s.value for s in law.spikes], rel=printed(4))
    bars = chart["bars"]
    apart = len(chart["dots"]["x"])
    assert np.sum(np.array(bars["heights"]) * np.diff(bars["edges"])) == pytest.approx(1 - apart / 200, rel=printed(3))


def test_a_new_activation_appears_by_itself(monkeypatch):
    from dataclasses import dataclass
    from typing import ClassVar

    from notsodeep.activations import base

    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))

    @dataclass(frozen=True)
    class Softsign(nsd.Activation):
        name: ClassVar[str] = "softsign"
        kinks: ClassVar[tuple[float, ...]] = (0.0,)
        slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

        def _value(self, x):
            return x / (1.0 + x.abs())

    assert '["softsign","softsign"]' in page()
    settings = settings_from({"activation": "softsign"}, SHOWN["numbers"].needs)
    assert "four numbers" in sections.numbers_section(settings)["message"]


def test_the_lines_of_python_run():
    given = {"activation": "sigmoid", "kernel": "ntk", "readout": "pre-activation", "p": "100", "n": "50"}
    document = sections.code_section(settings_from(given, SHOWN["code"].needs))
    scope: dict = {}
    exec(document["code"], scope)
    assert scope["twin"].depth == 1
    assert scope["deq"] == network_of(settings_from(given, SHOWN["code"].needs))


@pytest.mark.parametrize("name", names())
def test_every_activation_starts_at_a_network_with_a_unique_equilibrium(name):
    for feedback in ("0.05", "0.99"):
        deq = network_of(settings_from({"activation": name, "feedback": feedback}, SHOWN["kernel"].needs))
        deq.check_contraction()


# ---- stored numbers ----------------------------------------------------------------------------------------


def test_stored_numbers_are_those_of_the_server(explorer):
    text = stored_page({"activation": ("tanh", "elu")})  # the others stay where they start
    setup = json.loads(text.split('id="setup">')[1].split("</script>")[0])
    stored = setup["stored"]
    assert len(stored) == 2 * len(SHOWN)
    for query, document in stored.items():
        if "elu" in query and SHOWN[query.split("&")[0][8:]].slow:
            assert "notsodeep explore" in document["error"]  # a minute: not stored
        elif "section=width" not in query and "activation=tanh" in query:
            assert json.loads(ask(explorer, f"/{explorer.token}/numbers?{query}")[2]) == document


def test_the_page_holds_no_mathematics_and_fetches_nothing_from_elsewhere():
    whole = page()
    assert "https://" not in whole
    assert whole.count("http://") == whole.count("http://www.w3.org/2000/svg")
    assert "unsafe" not in whole
    assert "default-src 'none'" in whole
    script = whole.split('<script type="module">')[1]
    called = set(re.findall(r"Math\.\w+", script))  # places on an axis, and no more
    assert called == {"Math.abs", "Math.ceil", "Math.floor", "Math.log10", "Math.max", "Math.min"}
    assert not [name for name in names() if re.search(rf"\b{name}\b", script)]


def test_controls_say_what_they_are():
    for control in controls():
        assert control.start in control.stops
        assert len(set(control.stops)) == len(control.stops) > 1
        assert control.label
