// Streams in flight as bars on a canvas: one lane per stream; the length shows its age, the color its speed.

const LEAST_PITCH = 3, MOST_PITCH = 26, LEAST_WIDTH = 42, GHOST_MS = 350, STALL_MS = 1000, BYTES_PER_TOKEN = 4;
const WAITS = new Set(["requesting", "prefill", "whole"]);

const bars = {
  streams: new Map(), lanes: [], snapshot: null, received: 0, order: "lanes",
  selected: null, limits: [], longest: null, colours: null, cost: 0,
  still: matchMedia("(prefers-reduced-motion: reduce)"),

  begin(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.resize()).observe(canvas);
    const at = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointermove", event => event.pointerType === "mouse" && this.point(...at(event)));
    canvas.addEventListener("pointerdown", event => this.point(...at(event)));
    canvas.addEventListener("pointerleave", event => event.pointerType === "mouse" && this.select(null));
    canvas.addEventListener("blur", () => this.select(null));
    canvas.addEventListener("keydown", event => this.key(event));
    theme.listeners.push(() => this.paint());
    this.paint();
    this.resize();
  },

  /** Reads the colors from the theme, including those of the decode rate bands. */
  paint() {
    const text = rgb => `rgb(${rgb.map(Math.round).join()})`;
    const bands = BANDS.map((_, band) => text(theme.colour(`ramp-${band}`)));
    const named = Object.fromEntries(["card", "ink", "dim", "line", "faint", "wait", "late", "held"].map(name => [name, text(theme.colour(name))]));
    this.colours = { bands, ...named };
  },

  resize() {
    const box = this.canvas.getBoundingClientRect(), scale = Math.min(devicePixelRatio || 1, 2);
    [this.width, this.height, this.scale] = [box.width, box.height, scale];
    this.canvas.width = Math.max(1, Math.round(box.width * scale));
    this.canvas.height = Math.max(1, Math.round(box.height * scale));
    this.place();
  },

  /** Applies a snapshot that was received at `now`, in milliseconds of `performance.now()`. */
  take(snapshot, now) {
    this.snapshot = snapshot;
    this.received = now;
    this.limits = snapshot.objectives.filter(one => one.kind === "ttft").map(one => one.thresholds);
    const seen = new Set();
    for (const reported of snapshot.in_flight.streams) {
      seen.add(reported.id);
      const born = now - reported.age_ms;
      let stream = this.streams.get(reported.id);
      if (!stream) {
        stream = { id: reported.id, born, lane: null, gone: null };
        this.streams.set(reported.id, stream);
      }
      // Snapshots arrive slightly early or late; smooth the bar's growth.
      stream.born += (born - stream.born) * (Math.abs(born - stream.born) > 2000 ? 1 : 0.25);
      stream.reported = reported;
      stream.gone = null;
    }
    for (const stream of this.streams.values()) if (!seen.has(stream.id) && stream.gone === null) stream.gone = now;
    this.legend(snapshot.reading);
    this.arrange(now);
    if (this.selected && !this.streams.has(this.selected)) this.select(null);
    else if (this.selected) this.showTip();
  },

  /** True if the wait, in milliseconds, exceeds the limit of every TTFT objective for a prompt of this length. */
  late(reported, waited) {
    const allows = limit => limit.ttft_seconds + limit.ttft_seconds_per_1k_uncached_tokens * reported.request_bytes / BYTES_PER_TOKEN / 1000;
    return this.limits.length > 0 && this.limits.every(limit => waited / 1000 > allows(limit));
  },

  legend({ slow, comfortable, fast }) {
    const ranges = [`under ${digits(slow)} tok/s`, `${digits(slow)} to ${digits(comfortable)}`, `${digits(comfortable)} to ${digits(fast)}`, `over ${digits(fast)}`];
    ranges.forEach((range, band) => fill(`band-${band}`, `${range}: ${BANDS[band]}`));
  },

  /** Assigns a lane to every stream. In the order `lanes`, a stream keeps its lane until it ends, so that bars do not jump. */
  arrange(now) {
    for (const [id, stream] of this.streams) if (stream.gone !== null && now - stream.gone > GHOST_MS) this.streams.delete(id);
    const all = [...this.streams.values()];
    if (this.order !== "lanes") {
      const rate = stream => stream.reported.tokens_per_second ?? -1;
      const rank = this.order === "oldest" ? (a, b) => a.born - b.born : (a, b) => rate(a) - rate(b) || a.born - b.born;
      this.lanes = all.sort(rank);
    } else {
      const room = Math.max(8, Math.ceil(all.length * 1.5));
      this.lanes = this.lanes.map(stream => stream && this.streams.get(stream.id) === stream ? stream : null);
      // Compact the lanes when most are empty.
      if (this.lanes.length > room) this.lanes = this.lanes.filter(Boolean);
      const taken = new Set(this.lanes);
      let free = 0;
      for (const stream of all.filter(stream => !taken.has(stream)).sort((a, b) => a.born - b.born)) {
        while (this.lanes[free]) free += 1;
        this.lanes[free] = stream;
      }
      while (this.lanes.length > 0 && !this.lanes.at(-1)) this.lanes.pop();
    }
    this.place();
  },

  /** Computes the number of columns and rows, and the thickness of a bar. */
  place() {
    const lanes = Math.max(1, this.lanes.length), foot = 18;
    let columns = 1;
    const pitch = () => Math.min(MOST_PITCH, (this.height - foot) / Math.ceil(lanes / columns));
    while (pitch() < LEAST_PITCH && this.width / (columns + 1) >= LEAST_WIDTH) columns += 1;
    while (pitch() < 2 && this.width / (columns + 1) >= 16) columns += 1;
    [this.columns, this.pitch] = [columns, pitch()];
    this.rows = Math.max(1, Math.min(Math.ceil(lanes / columns), Math.floor((this.height - foot) / this.pitch + 1e-6)));
    this.lane = this.width / columns;
  },

  /** Draws the state at `now`. */
  draw(now) {
    const began = performance.now(), { context, colours, scale } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    // Bars stop growing 2.5 s after the last snapshot.
    const at = Math.min(now, this.received + 2500);
    this.stretch(at);
    const gutter = this.columns > 1 ? Math.min(6, this.lane * 0.08) : 0;
    const room = Math.max(4, this.lane - gutter), perMs = room / this.longest / 1000;
    if (this.longest !== null) this.axis(room);
    const batches = new Map(), flows = [];
    const put = (colour, x, y, width, height) => {
      let batch = batches.get(colour);
      if (!batch) batches.set(colour, batch = []);
      batch.push(Math.round(x * scale), Math.round(y * scale), Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale)));
    };
    const thick = Math.max(1, this.pitch >= 6 ? this.pitch - 2 : this.pitch - 1);
    this.lanes.forEach((stream, lane) => {
      if (!stream) return;
      const { reported } = stream, x = Math.floor(lane / this.rows) * this.lane, y = (lane % this.rows) * this.pitch;
      const age = (stream.gone ?? at) - stream.born, end = Math.max(1.5, Math.min(room, age * perMs));
      if (stream.gone !== null) {
        if (now - stream.gone < GHOST_MS) put(colours.line, x, y, end, thick);
        return;
      }
      const waits = WAITS.has(reported.doing) || !known(reported.ttft_ms);
      const late = this.late(reported, reported.ttft_ms ?? age);
      const first = waits ? end : Math.min(end, reported.ttft_ms * perMs);
      if (reported.doing === "blocked") put(colours.held, x, y, end, thick);
      else {
        put(late ? colours.late : colours.wait, x, y, first, thick);
        if (!waits && end > first) {
          const rate = reported.tokens_per_second;
          put(known(rate) ? colours.bands[band(rate, this.snapshot.reading)] : colours.line, x + first, y, end - first, thick);
          // A red end marks a stalled stream.
          if (reported.waited_ms > STALL_MS) put(colours.late, x + Math.max(first, end - 4), y, Math.min(4, end - first), thick);
          if (thick >= 5 && !this.still.matches) flows.push([x + first, y, end - first, reported]);
        }
      }
      if (age * perMs > room) put(colours.card, x + room - 5, y, 2, thick);
    });
    // Align to device pixels, so that thin bars have sharp edges.
    context.setTransform(1, 0, 0, 1, 0, 0);
    for (const [colour, batch] of batches) {
      context.fillStyle = colour;
      for (let i = 0; i < batch.length; i += 4) context.fillRect(batch[i], batch[i + 1], batch[i + 2], batch[i + 3]);
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.flow(flows, thick, at);
    this.mark(room, thick);
    this.cost += (performance.now() - began - this.cost) * 0.05;
  },

  /** In thick bars, stripes move at the token rate of the stream. Very thick bars also show the rate as text. */
  flow(flows, thick, at) {
    const { context, colours } = this, spacing = 18;
    context.fillStyle = colours.card;
    context.globalAlpha = 0.28;
    for (const [x, y, width, reported] of flows) {
      const rate = reported.tokens_per_second ?? 0;
      const made = reported.tokens + rate * (at - this.received) / 1000;
      for (let mark = made * 3 % spacing; mark < width - 2; mark += spacing) context.fillRect(x + mark, y, 2, thick);
    }
    context.globalAlpha = 1;
    if (this.columns > 1 || this.pitch < 17) return;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const [x, y, width, reported] of flows) {
      const text = `${digits(reported.tokens_per_second)} tok/s`, size = context.measureText(text).width;
      const inside = width > size + 16;
      context.fillStyle = inside ? colours.card : colours.dim;
      context.fillText(text, inside ? x + width - size - 8 : Math.min(x + width + 8, this.width - size), y + thick / 2 + 0.5);
    }
  },

  /** Adapts the time that the full width represents, so that most streams fit and a very old one does not compress the others. */
  stretch(at) {
    const ages = [];
    for (const stream of this.streams.values()) if (stream.gone === null) ages.push((at - stream.born) / 1000);
    ages.sort((a, b) => a - b);
    // While no stream is in flight, the scale stays unchanged.
    if (ages.length === 0) return;
    const most = ages[Math.floor((ages.length - 1) * 0.97)] * 1.12;
    const wanted = [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 180, 240, 300, 600, 1200, 1800, 3600].find(mark => mark >= most) ?? most;
    const atOnce = this.longest === null || this.still.matches || Math.abs(wanted - this.longest) < 0.01;
    this.longest = atOnce ? wanted : this.longest + (wanted - this.longest) * 0.06;
  },

  axis(room) {
    const { context, colours, scale } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    const base = this.height - 5;
    if (this.columns > 1) {
      context.fillStyle = colours.faint;
      for (let column = 1; column < this.columns; column += 1) context.fillRect(Math.round(column * this.lane) - 3, 0, 1, this.height - 18);
      context.fillStyle = colours.dim;
      context.fillText(`age: a full bar is ${shortTime(Math.round(this.longest * 10) / 10)}`, 0, base);
      return;
    }
    const step = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200].find(mark => this.longest / mark <= Math.max(2.5, this.width / 110)) ?? this.longest / 3;
    for (let mark = step; mark <= this.longest * 1.001; mark += step) {
      const x = room * mark / this.longest, text = shortTime(mark), wide = context.measureText(text).width;
      context.fillStyle = colours.faint;
      context.fillRect(Math.round(x) - 1, 0, 1, this.height - 18);
      context.fillStyle = colours.dim;
      context.fillText(text, Math.min(this.width - wide, x - wide / 2), base);
    }
  },

  mark(room, thick) {
    const lane = this.selected ? this.lanes.findIndex(stream => stream?.id === this.selected) : -1;
    if (lane < 0) return;
    const [x, y] = this.corner(lane);
    this.context.strokeStyle = this.colours.ink;
    this.context.lineWidth = 1.5;
    this.context.strokeRect(x - 0.5, y - 1.5, room + 1, thick + 3);
  },

  corner(lane) { return [Math.floor(lane / this.rows) * this.lane, (lane % this.rows) * this.pitch]; },

  /** Selects the stream at this position; the nearest one for thin bars. */
  point(x, y) {
    const column = Math.min(this.columns - 1, Math.max(0, Math.floor(x / this.lane))), row = Math.floor(y / this.pitch);
    const near = this.pitch < 8 ? [0, 1, -1, 2, -2, 3, -3] : [0];
    const lane = near.map(off => row + off).filter(at => at >= 0 && at < this.rows).map(at => column * this.rows + at).find(at => this.lanes[at] && this.lanes[at].gone === null);
    this.select(lane === undefined ? null : this.lanes[lane].id, x, y);
  },

  key(event) {
    const rows = { ArrowDown: 1, ArrowUp: -1, ArrowRight: this.columns > 1 ? this.rows : 1, ArrowLeft: this.columns > 1 ? -this.rows : -1 };
    const step = rows[event.key];
    if (event.key === "Escape") return this.select(null);
    if (step === undefined && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const there = at => this.lanes[at] && this.lanes[at].gone === null;
    const last = this.lanes.length - 1;
    let at = this.selected ? this.lanes.findIndex(stream => stream?.id === this.selected) : -1;
    if (event.key === "Home" || at < 0) at = this.lanes.findIndex((_, lane) => there(lane));
    else if (event.key === "End") at = this.lanes.findLastIndex((_, lane) => there(lane));
    else {
      const toward = Math.sign(step);
      at = Math.max(0, Math.min(last, at + step));
      while (at >= 0 && at <= last && !there(at)) at += toward;
    }
    if (there(at)) this.select(this.lanes[at].id);
  },

  select(id, x, y) {
    this.selected = id;
    this.spot = x === undefined ? null : [x, y];
    if (id) this.showTip(); else tip.hide();
    main.wake();
  },

  /** Shows the values of the selected stream. */
  showTip() {
    const stream = this.streams.get(this.selected), lane = this.lanes.indexOf(stream);
    if (!stream || lane < 0) return tip.hide();
    const { reported } = stream, box = this.canvas.getBoundingClientRect(), [x, y] = this.spot ?? this.corner(lane);
    const model = known(reported.model) ? this.snapshot.models[reported.model] : "no model", listener = this.snapshot.listeners[reported.listener];
    const doing = { requesting: "sends its request", prefill: "waits for its first token", whole: "waits for its non-streamed response", decode: "streams", blocked: "blocked on a slow client", ending: "is ending", session: "in conversation" }[reported.doing] ?? reported.doing;
    const of = known(reported.max_tokens) ? ` of ${reported.max_tokens} at most` : "";
    tip.show(box.left + x, box.top + y, model, [
      ["state", doing], ["age", ms(reported.age_ms)], ["first token", ms(reported.ttft_ms)],
      ["tokens", `${reported.tokens}${of}`], ["speed", speed(reported.tokens_per_second, this.snapshot.reading)],
      ["since last token", ms(reported.waited_ms)], ["route", reported.route],
      ["engine", [listener?.engine, this.snapshot.listeners.length > 1 ? listener?.name : null].filter(Boolean).join(", ") || "not detected"], ["number", reported.id],
    ]);
  },
};
