// Number formatting and elements. Text is inserted only as text nodes, never as markup.

const NONE = "–";
const known = value => value !== null && value !== undefined;

/** A short number: about three significant digits, with k or M for large values. */
function digits(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  // Below 1e6, but rounded up to it.
  if (size >= 999_500) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** Formats a time given in seconds. */
function time(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds >= 1) return `${seconds.toFixed(seconds >= 10 ? 1 : 2)} s`;
  if (seconds === 0) return "0 s";
  const ms = seconds * 1e3;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

/** Formats a time given in seconds for an axis label, in its shortest form. */
function shortTime(seconds) {
  if (seconds >= 60) return `${+(seconds / 60).toFixed(1)} min`;
  return seconds >= 1 || seconds === 0 ? `${+seconds.toFixed(1)} s` : `${+(seconds * 1e3).toFixed(1)} ms`;
}

const ms = value => known(value) ? time(value / 1e3) : NONE;
const percent = (share, most = 2) => known(share) ? `${+(share * 100).toFixed(most)} %` : NONE;

/** How readers experience a decode rate, by the limits of `slo.reading`. */
const BANDS = ["slower than reading", "at reading speed", "ahead of readers", "faster than readers notice"];
const band = (rate, { slow, comfortable, fast }) => rate < slow ? 0 : rate < comfortable ? 1 : rate <= fast ? 2 : 3;
const speed = (rate, reading) => known(rate) ? `${digits(rate)} tok/s, ${BANDS[band(rate, reading)]}` : NONE;

const word = text => text.replaceAll("_", " ");
const find = id => document.getElementById(id);

function fill(id, text) {
  const element = find(id);
  if (element.textContent !== text) element.textContent = text;
}

/** An element with these attributes and children. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** An SVG element with these attributes and this text. */
function draw(name, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, typeof value === "number" ? +value.toFixed(2) : value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Sets the viewBox to the size in pixels, so that text is not stretched. Returns width and height. */
function measure(svg) {
  const { width, height } = svg.getBoundingClientRect();
  svg.setAttribute("viewBox", `0 0 ${Math.max(1, width)} ${Math.max(1, height)}`);
  return [Math.max(1, width), Math.max(1, height)];
}

// The tooltip, which follows the pointer or the selection.
const tip = {
  show(x, y, title, rows) {
    const element = find("tip");
    element.replaceChildren(make("b", {}, title), ...rows.map(([name, value]) => make("span", {}, make("i", {}, name), value)));
    element.hidden = false;
    const box = element.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
    const top = y + 14 + box.height > innerHeight ? y - box.height - 14 : y + 14;
    element.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  },
  hide() { find("tip").hidden = true; },
};
