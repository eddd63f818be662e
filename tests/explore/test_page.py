"""The page in a real browser: controls moved by keys, wide and narrow, light and dark, no message on the console."""

from __future__ import annotations

import json
import shutil
import threading

import pytest

from notsodeep.explore import Explorer, sections, stored_page
from notsodeep.explore.controls import names, settings_from

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
def address():
    with Explorer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    stops = {"activation": ("tanh", "elu"), "against": ("n", "ridge")}
    file.write_text(stored_page(stops), encoding="utf-8")
    return file.as_uri()


SETTLED = """
const sections = [...document.querySelectorAll('main > section')];
return sections.length > 0 && sections.every((e) => e.dataset.asked === 'answered')"""


def settled(browser) -> None:
    WebDriverWait(browser, 90, 0.1).until(lambda b: b.execute_script(SETTLED))


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


def said(browser, section: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, f"#panel-{section} .message").text


def press(browser, identifier: str, *keys: str) -> None:
    browser.find_element(By.ID, identifier).send_keys(*keys)
    settled(browser)


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


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("state", ["", "#activation=sigmoid&kernel=ntk&readout=pre-activation&n=50&against=times"])
def test_it_fits_and_no_word_is_printed_on_another(browser, address, width, scheme, state):
    visit(browser, address + state, width, scheme)
    wide, shown = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= shown
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg.chart")) == 6
    paper = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(int(v) for v in paper[4:-1].split(",")) < 3 * 128) == (scheme == "dark")
    assert "NaN" not in browser.find_element(By.TAG_NAME, "main").get_attribute("innerHTML")
    assert browser.execute_script(OVERPRINTS) == []
    assert browser.execute_script(HOLES) == []
    assert browser.get_log("browser") == []


def test_controls_moved_by_keys_ask_python(browser, address):
    visit(browser, f"{address}#activation=tanh")
    listed = [option.get_attribute("value") for option in Select(browser.find_element(By.ID, "activation")).options]
    assert listed == list(names())  # nothing but what Python lists
    before = {name: said(browser, name) for name in ("kernel", "spectrum", "learning", "width")}
    press(browser, "feedback", Keys.ARROW_LEFT * 5)
    assert browser.find_element(By.ID, "feedback-value").text == "0.55"
    assert all(said(browser, name) != text for name, text in before.items())
    assert "sigma_a2=0.1375" in browser.find_element(By.ID, "python").text
    before = said(browser, "kernel"), said(browser, "learning")
    press(browser, "mean", Keys.HOME)
    assert said(browser, "kernel") == before[0]  # it does not need the mixture
    assert said(browser, "learning") != before[1]
    assert "feedback=0.55" in browser.current_url
    assert "mean=0.0" in browser.current_url
    Select(browser.find_element(By.ID, "readout")).select_by_value("pre-activation")
    settled(browser)
    assert said(browser, "kernel") != before[0]
    press(browser, "reset", Keys.ENTER)
    assert browser.current_url.endswith("#")
    assert Select(browser.find_element(By.ID, "activation")).first_selected_option.get_attribute("value") == "relu"
    assert browser.get_log("browser") == []


def test_slow_answers_show_that_they_are_coming_and_the_last_setting_wins(browser, address, monkeypatch):
    visit(browser, f"{address}#activation=tanh")
    gate, started = threading.Event(), threading.Event()
    quick = sections.width_section

    def slow(settings):
        started.set()
        gate.wait(30)
        return quick(settings)

    held = [
        sections.Section(s.name, s.title, s.needs, slow if s.name == "width" else s.build, s.slow, s.wide)
        for s in sections.SECTIONS
    ]
    monkeypatch.setattr("notsodeep.explore.server.SECTIONS", held)
    panel = browser.find_element(By.ID, "panel-width")
    Select(browser.find_element(By.ID, "kernel")).select_by_value("ntk")
    assert started.wait(20)
    WebDriverWait(browser, 20, 0.1).until(lambda _: panel.get_attribute("aria-busy") == "true")
    WebDriverWait(browser, 20, 0.1).until(lambda _: "computing" in panel.find_element(By.CLASS_NAME, "coming").text)
    Select(browser.find_element(By.ID, "kernel")).select_by_value("ck")  # changed while an answer is under way
    gate.set()
    settled(browser)
    needs = next(s.needs for s in sections.SECTIONS if s.name == "width")
    assert said(browser, "width") == quick(settings_from({"activation": "tanh"}, needs))["message"]
    assert panel.find_element(By.CLASS_NAME, "coming").text == ""


def test_failures_are_shown_in_words(browser, address, monkeypatch):
    def fail(settings):
        raise ValueError("<b>this setting has no numbers</b>")

    broken = [sections.Section(s.name, s.title, s.needs, fail, s.slow, s.wide) for s in sections.SECTIONS]
    monkeypatch.setattr("notsodeep.explore.server.SECTIONS", broken)
    visit(browser, address)
    assert said(browser, "spectrum") == "<b>this setting has no numbers</b>"  # as text
    assert browser.execute_script(HOLES) == []
    browser.get_log("browser")  # Chromium reports answers that are no success


def test_every_control_is_reached_by_the_keyboard_and_has_a_name(browser, address):
    visit(browser, f"{address}#activation=tanh")
    missing = browser.execute_script(
        "return [...document.querySelectorAll('input, select, button, [tabindex]')]"
        ".filter((e) => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label')))"
        ".map((e) => e.outerHTML)"
    )
    assert missing == []
    browser.execute_script("document.activeElement.blur()")
    seen = set()
    for _ in range(26):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.add(browser.execute_script("return document.activeElement.id || document.activeElement.className.baseVal"))
    assert {"activation", "feedback", "kernel", "scale", "n", "ridge", "ratio", "reset", "chart", "copy"} <= seen
    browser.execute_script("document.querySelector('svg.chart').focus()")
    webdriver.ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    values = [item.text for item in browser.find_elements(By.CSS_SELECTOR, "#panel-kernel .figure:first-child output")]
    assert len(values) == 4
    assert all(values)  # the reading at the cursor


def test_a_wrong_address_falls_back(browser, address):
    visit(browser, f"{address}#activation=<img src=x>&feedback=7&nothing=1&kernel=ck")
    assert Select(browser.find_element(By.ID, "activation")).first_selected_option.get_attribute("value") == "relu"
    assert browser.get_log("browser") == []


def test_the_stored_page_needs_no_server(browser, stored):
    visit(browser, f"{stored}#activation=tanh", 400)
    assert "One hidden layer" in said(browser, "kernel")
    before = said(browser, "learning")
    Select(browser.find_element(By.ID, "against")).select_by_value("ridge")
    settled(browser)
    assert said(browser, "learning") != before
    assert not browser.find_elements(By.ID, "feedback")  # one stop: nothing to move
    assert "Feedback" in browser.find_element(By.ID, "origin").text
    Select(browser.find_element(By.ID, "activation")).select_by_value("elu")
    settled(browser)
    assert "takes about a minute" in said(browser, "kernel")
    assert "law predicts" in said(browser, "spectrum")
    assert browser.execute_script(OVERPRINTS) == []
    assert json.loads(browser.execute_script("return JSON.stringify(performance.getEntriesByType('resource'))")) == []
    assert browser.get_log("browser") == []
