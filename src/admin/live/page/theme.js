// Dark or light: as the system has it, until the button is pressed.

const theme = {
  dark: matchMedia("(prefers-color-scheme: dark)"),
  listeners: [],
  begin() {
    let kept = null;
    try { kept = localStorage.getItem("tokometer-theme"); } catch { /* Storage may be forbidden: the choice is then not kept. */ }
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
  /** A colour of the style sheet as red, green and blue: a canvas knows no variables. */
  colour(name) {
    const probe = make("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    probe.remove();
    return [red, green, blue];
  },
};
