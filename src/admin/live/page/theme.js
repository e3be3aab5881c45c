// Dark or light theme: the system's, until the button is pressed.

const theme = {
  dark: matchMedia("(prefers-color-scheme: dark)"),
  listeners: [],
  begin() {
    let kept = null;
    try { kept = localStorage.getItem("tokometer-theme"); } catch { /* Storage may be blocked: the choice is then not saved. */ }
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
    find("theme").addEventListener("click", () => {
      const next = this.isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try { localStorage.setItem("tokometer-theme", next); } catch { /* As above. */ }
      this.changed();
    });
    this.dark.addEventListener("change", () => this.changed());
    this.changed();
  },
  isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : this.dark.matches;
  },
  changed() {
    fill("theme", this.isDark() ? "Light" : "Dark");
    this.listeners.forEach(listener => listener());
  },
  /** A color variable of the style sheet as red, green and blue, because a canvas cannot use variables. */
  colour(name) {
    const probe = make("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    probe.remove();
    return [red, green, blue];
  },
};
