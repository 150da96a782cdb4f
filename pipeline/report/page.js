"use strict";
// Filters and remembered language only; without this script the page shows everything.
(function () {
  const root = document.documentElement;
  const radios = document.querySelectorAll('input[name="language"]');
  const store = { get: (k) => { try { return localStorage.getItem(k); } catch { return null; } },
                  set: (k, v) => { try { localStorage.setItem(k, v); } catch { /* file: pages may have none */ } } };
  const chosen = store.get("language");
  radios.forEach((radio) => {
    if (radio.value === chosen) radio.checked = true;
    if (radio.checked) root.lang = radio.value === "zh" ? "zh-Hans" : "en";
    radio.addEventListener("change", () => { store.set("language", radio.value); root.lang = radio.value === "zh" ? "zh-Hans" : "en"; });
  });

  const form = document.querySelector("form.filter");
  if (!form) return;
  form.hidden = false;
  const cases = Array.from(document.querySelectorAll(".case"));
  const count = form.querySelector("output");
  function show() {
    const wanted = new FormData(form);
    let shown = 0;
    for (const item of cases) {
      const ok = ["cause", "rule", "state", "cluster"].every((name) => {
        const value = wanted.get(name);
        return !value || (" " + item.dataset[name] + " ").includes(" " + value + " ");
      });
      item.hidden = !ok;
      if (ok) shown += 1;
    }
    count.textContent = shown + " / " + cases.length;
  }
  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  document.querySelectorAll("a[data-filter]").forEach((link) => link.addEventListener("click", () => {
    const [name, value] = link.dataset.filter.split("=");
    form.reset();
    form.elements[name].value = value;
    show();
  }));
  show();

  // A link to a case opens it, whatever was filtered or folded away.
  document.querySelectorAll('a[href^="#case-"]').forEach((link) => link.addEventListener("click", () => {
    form.reset();
    show();
    for (let item = document.querySelector(link.getAttribute("href")); item; item = item.parentElement) {
      if (item.tagName === "DETAILS") item.open = true;
    }
  }));

  // j and k move through the cases that are shown.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    const step = { j: 1, k: -1 }[event.key];
    if (!step) return;
    const open = cases.filter((item) => !item.hidden && item.offsetParent);
    const now = open.findIndex((item) => item.contains(document.activeElement));
    const next = open[now < 0 ? 0 : now + step];
    if (next) next.querySelector("summary").focus();
  });
})();
