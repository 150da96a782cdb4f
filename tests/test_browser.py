"""The pages in a real headless Chromium: hostile rows run nothing, the switch and the filter work, nothing overflows a phone."""

import re
import shutil
import subprocess

import night_history as nh
import night_tree as nt
import pytest

from pipeline.core.params import Params
from pipeline.report.night_page import write_night_page
from pipeline.stages import report

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def run(tmp_path, page, *options: str) -> str:
    """The page's DOM after its scripts ran."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=3000", *options, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


def probe(tmp_path, page, script: str) -> str:
    """What a script of ours, added to a copy of the page, leaves in the title. The copy has no policy, or it would not run."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    copy = tmp_path / "probe.html"
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return re.search(r"<title>(.*?)</title>", run(tmp_path, copy, "--window-size=375,800"), re.DOTALL)[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rows = nt.mixed_night(60, bad_share=0.6)
    rows[0] = nt.row(0, "wrong", answer=nt.HOSTILE, text=nt.HOSTILE, id=nt.HOSTILE, reference=[nt.HOSTILE + "x"], file=nt.HOSTILE)
    rows[0]["meta"][nt.HOSTILE] = nt.HOSTILE
    paths = nt.build(tmp_path_factory.mktemp("night"), rows, rejected=2, gate={"verdict": "red", "reasons": [nt.HOSTILE], "baseline": True})
    report.run(Params(), paths)
    return paths.bad_cases_html


def test_the_attack_would_work_on_a_page_that_does_not_escape(tmp_path):
    naive = tmp_path / "naive.html"
    naive.write_text(f"<title>calm</title><p>{nt.HOSTILE}</p>", encoding="utf-8")
    assert "<title>owned</title>" in run(tmp_path, naive)


def test_hostile_rows_run_nothing(tmp_path, page):
    dom = run(tmp_path, page)
    assert "<title>Morning report</title>" in dom
    assert "owned" in dom and "\u202e" not in dom and "U+202E" in dom
    assert dom.count("<script>") == 1
    assert probe(tmp_path, page, "document.title = document.querySelectorAll('img,[onerror]').length") == "0"


def test_the_policy_stops_a_script_even_where_escaping_failed(tmp_path, page):
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text(encoding="utf-8").replace("</main>", nt.HOSTILE + "</main>"), encoding="utf-8")
    assert "<title>Morning report</title>" in run(tmp_path, broken)


def test_language_switch_filter_and_keys(tmp_path, page):
    script = """
      const seen = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.offsetParent).length;
      const out = [seen('h2 .en') > 0, seen('h2 .zh')];
      document.getElementById('zh').click();
      out.push(seen('h2 .en'), seen('h2 .zh') > 0, document.documentElement.lang);
      const form = document.querySelector('form.filter');
      const all = document.querySelectorAll('.case:not([hidden])').length;
      form.elements.rule.value = 'refusal'; form.dispatchEvent(new Event('input'));
      const some = [...document.querySelectorAll('.case:not([hidden])')];
      out.push(some.length > 0 && some.length < all, some.every((c) => c.dataset.rule.includes('refusal')));
      form.reset();
      setTimeout(() => {
        document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}));
        out.push(document.querySelectorAll('.case:not([hidden])').length === all, document.activeElement.tagName);
        form.elements.rule.value = 'empty'; form.dispatchEvent(new Event('input'));
        const links = document.querySelectorAll('a[href^="#case-"]');
        const last = links[links.length - 1];
        last.click();
        const target = document.querySelector(last.getAttribute('href'));
        out.push(target.open, target.offsetParent !== null);
        document.title = out.join(' ');
      }, 50);
    """
    assert probe(tmp_path, page, script) == "true 0 0 true zh-Hans true true true SUMMARY true true"


def test_nothing_is_wider_than_a_phone(tmp_path, page):
    script = """
      document.querySelectorAll('details').forEach((d) => { d.open = true; });
      setTimeout(() => {
        const inScroller = (e) => e.closest('.scroll, .command, .text');
        const right = (e) => e.getBoundingClientRect().right;
        const wide = [...document.querySelectorAll('main *')].filter((e) => right(e) > innerWidth + 1 && !inScroller(e));
        document.title = document.documentElement.scrollWidth <= innerWidth ? wide.length : 'scrolls';
      }, 100);
    """
    assert probe(tmp_path, page, script) == "0"


def test_every_control_has_a_name_and_every_table_its_headers(tmp_path, page):
    script = """
      const controls = [...document.querySelectorAll('select, input, button, a, summary')].filter((e) => !e.closest('[hidden]'));
      const unnamed = controls.filter((e) => !(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute('aria-label'));
      const tables = [...document.querySelectorAll('table')].filter((t) => !t.querySelector('th[scope]'));
      const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
      document.title = [unnamed.length, tables.length, ids.length - new Set(ids).size].join(' ');
    """
    assert probe(tmp_path, page, script) == "0 0 0"


def test_the_night_page_stands_too(tmp_path, page):
    paths = nt.build(tmp_path, [nt.row(0)])
    nh.write(paths, 12, shift_at=8)
    index = write_night_page(paths)
    script = """
      const drawn = document.querySelectorAll('figure svg path').length > 20;
      document.title = [document.documentElement.scrollWidth <= innerWidth, drawn].join(' ');
    """
    assert probe(tmp_path, index, script) == "true true"
