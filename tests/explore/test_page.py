"""The page in a real browser: sliders moved by keys, wide and narrow, light and dark, no message on the console."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from helpers import printed, ulps
from notsodeep.cli import app
from notsodeep.explore import page

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium and its driver: apt install chromium-driver"
)
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    file.write_text(page(), encoding="utf-8")
    return file.as_uri()


def settled(browser) -> None:
    ready = "return [document.body, document.getElementById('panel-learning')].every((e) => e.dataset.ready === 'yes')"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(ready))


def visit(browser, address: str, width: int = 1280, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get("about:blank")
    browser.get(address)
    settled(browser)


def text(browser, identifier: str) -> str:
    return browser.find_element(By.ID, identifier).text


def press(browser, identifier: str, *keys: str) -> None:
    browser.find_element(By.ID, identifier).send_keys(*keys)
    settled(browser)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_says_nothing_on_the_console(browser, address, width, scheme):
    visit(browser, address, width, scheme)
    wide, shown = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= shown
    assert len(browser.find_elements(By.CSS_SELECTOR, ".figure svg.chart")) >= 5
    paper = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(int(v) for v in paper[4:-1].split(",")) < 3 * 128) == (scheme == "dark")
    assert "NaN" not in browser.find_element(By.TAG_NAME, "main").get_attribute("innerHTML")
    assert browser.get_log("browser") == []


def test_sliders_moved_by_keys_give_pythons_numbers(browser, address):
    visit(browser, f"{address}#activation=silu")
    before = text(browser, "say-spectrum")
    press(browser, "fraction", Keys.ARROW_LEFT * 5)
    press(browser, "classes", Keys.ARROW_RIGHT)
    press(browser, "mean", Keys.HOME)
    assert text(browser, "say-spectrum") != before
    deq = nsd.DEQ("silu", sigma_a2=0.75 * nsd.DEQ("silu", sigma_a2=0.0).limit)
    variances = [1 + 8 * a / 1000**0.5 for a in range(3)]
    shares = [267 / 800, 267 / 800, 266 / 800]
    tau0 = sum(w * v for w, v in zip(shares, variances, strict=True)) ** 0.5
    cells = browser.find_elements(By.CSS_SELECTOR, "#numbers tbody tr td:nth-of-type(1)")
    shown = [float(cell.text.split()[-1]) for cell in cells]
    assert shown == pytest.approx(nsd.coefficients(deq, tau0).four, abs=printed(8))
    assert "fraction=0.75" in browser.current_url
    assert "classes=3" in browser.current_url
    assert browser.get_log("browser") == []


def test_the_lines_to_copy_run_in_python(browser, address):
    visit(browser, f"{address}#activation=tanh&p=200&n=150")
    lines = text(browser, "python")
    scope: dict = {}
    exec(lines, scope)
    assert scope["twin"].depth == 1
    assert scope["law"].n == 150
    for line in text(browser, "shell").splitlines():
        found = CliRunner().invoke(app, line.split()[1:])
        assert found.exit_code == 0, found.output
        assert "class Twin" in found.output


OVERPRINTS = """
return [...document.querySelectorAll('svg.chart')].flatMap((chart) => {
  const found = [...chart.querySelectorAll('.axes text, text.note')];
  const words = found.map((e) => [e.textContent, e.getBoundingClientRect()]);
  return words.flatMap(([a, p], i) => words.slice(i + 1)
    .filter(([, q]) => p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom)
    .map(([b]) => `${a} on ${b}`));
})"""
HOLES = """
const boxes = [...document.querySelectorAll('main > section')].map((e) => e.getBoundingClientRect());
const wide = document.querySelector('main').getBoundingClientRect().width;
const rows = Map.groupBy(boxes, (box) => Math.round(box.top));
const shares = [...rows.values()].map((row) => row.reduce((sum, box) => sum + box.width, 0) / wide);
return shares.filter((share) => share < 0.9)
"""


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("state", ["", "#activation=tanh&kernel=ntk&readout=pre-activation&n=40&p=100"])
def test_no_word_is_printed_on_another_and_no_cell_is_empty(browser, address, width, state):
    visit(browser, address + state, width)
    assert browser.execute_script(OVERPRINTS) == []
    assert browser.execute_script(HOLES) == []


def test_the_units_of_relu_are_drawn_and_follow_the_slider(browser, address):
    visit(browser, address)
    for kinds in (3, 4):
        press(browser, "kinds", Keys.ARROW_RIGHT)
        assert len(browser.find_elements(By.CSS_SELECTOR, "#fig-units .legend li")) == kinds
    assert "(4 kinds) of |x||y| k(1)" in text(browser, "say-onelayer")
    before = text(browser, "say-difference")
    Select(browser.find_element(By.ID, "readout")).select_by_value("pre-activation")
    settled(browser)
    assert text(browser, "say-difference") != before
    assert 'readout="pre-activation"' in text(browser, "python")
    Select(browser.find_element(By.ID, "activation")).select_by_value("elu")
    settled(browser)
    assert not browser.find_element(By.ID, "kinds").is_displayed()
    assert browser.get_log("browser") == []


def test_a_plain_layer_that_does_as_well_is_explained(browser, address):
    visit(browser, address)
    assert "of the norms beside the inner products" in text(browser, "say-learning")
    visit(browser, f"{address}#activation=tanh")
    assert "nothing that a plain layer does not" in text(browser, "say-learning")


def test_settings_that_take_too_long_are_refused_in_words(browser, address):
    visit(
        browser, f"{address}#activation=formula&formula=gelu(x)%2Bsin(9*x)%2F9&fraction=0.99&scale=3&norm=4&kernel=ntk"
    )
    assert "take a page too long" in text(browser, "say-difference")
    assert "class means" in text(browser, "numbers")  # what costs little is there
    assert browser.get_log("browser") == []


def test_the_lines_of_a_formula_run_in_python(browser, address):
    visit(browser, f"{address}#activation=formula&formula=max(x%2C%200)%2Bpi*x%2F10&p=200&n=150")
    scope: dict = {}
    exec(text(browser, "python"), scope)
    assert scope["deq"].activation(2.0) == pytest.approx(2.0 + 0.2 * math.pi, abs=ulps())


def test_every_control_is_reached_by_the_keyboard_and_has_a_name(browser, address):
    visit(browser, address)
    missing = browser.execute_script(
        "return [...document.querySelectorAll('input, select, button, [tabindex]')]"
        ".filter((e) => !e.closest('[hidden]'))"
        ".filter((e) => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label')))"
        ".map((e) => e.outerHTML)"
    )
    assert missing == []
    browser.execute_script("document.activeElement.blur()")
    seen = set()
    for _ in range(60):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.add(browser.execute_script("return document.activeElement.id"))
    assert {"activation", "fraction", "kernel", "scale", "n", "ridge", "norm", "draw", "file", "copy-python"} <= seen


def test_a_formula_is_taken_and_a_wrong_one_is_explained(browser, address):
    visit(browser, address)
    Select(browser.find_element(By.ID, "activation")).select_by_value("formula")
    settled(browser)
    field = browser.find_element(By.ID, "formula")
    field.clear()
    field.send_keys("tanh(x) + x/10")
    settled(browser)
    assert "1.1" in text(browser, "formula-help")
    field.send_keys(" + alert(1)")
    WebDriverWait(browser, 10).until(lambda b: "alert" in text(b, "formula-help"))
    assert browser.get_log("browser") == []


def test_learning_against_ridge_and_time(browser, address):
    visit(browser, address)
    for choice, word in (("ridge", "best ridge"), ("time", "best time")):
        browser.find_element(By.CSS_SELECTOR, f"input[name=against][value={choice}]").click()
        WebDriverWait(browser, 60).until(lambda b, word=word: word in text(b, "say-learning"))
    assert browser.get_log("browser") == []


def test_random_networks_are_drawn(browser, address):
    visit(browser, address)
    browser.find_element(By.ID, "draw").click()
    WebDriverWait(browser, 90).until(lambda b: "seed 1" in text(b, "say-width"))
    WebDriverWait(browser, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#fig-iteration svg"))
    assert browser.get_log("browser") == []


def test_a_file_of_ones_own(browser, address, tmp_path: Path):
    visit(browser, f"{address}#activation=tanh")
    good, bad = tmp_path / "points.csv", tmp_path / "bad.csv"
    good.write_text("a,b,c,label\n" + "\n".join(f"{i % 5},{(i * i) % 7},{i % 3},{'xy'[i % 2]}" for i in range(30)))
    bad.write_text("1,2\n3\n")
    browser.find_element(By.ID, "file").send_keys(str(good))
    WebDriverWait(browser, 60).until(lambda b: "Suggested twin" in text(b, "data-report"))
    assert "30 points of 3 numbers, 2 classes" in text(browser, "data-report")
    browser.find_element(By.ID, "file").send_keys(str(bad))
    WebDriverWait(browser, 10).until(lambda b: "cannot be used" in text(b, "data-report"))
    assert browser.get_log("browser") == []


def test_nothing_is_fetched():
    whole = page()
    assert "http://" not in whole.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in whole
    assert "default-src 'none'" in whole
