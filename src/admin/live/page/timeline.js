// A slow request: its phases, and the arrival of its tokens.

const timeline = {
  chosen: null,

  begin() {
    find("slow-list").addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const buttons = [...find("slow-list").children], at = buttons.indexOf(document.activeElement);
      buttons[(at + step + buttons.length) % buttons.length]?.click();
      find("slow-list").querySelector("[aria-checked=true]")?.focus();
    });
  },

  render(snapshot) {
    const all = snapshot.slowest, list = find("slow-list");
    const shown = all.find(slow => slow.id === this.chosen) ?? all[0];
    fill("slow-note", all.length > 0 ? "by the longest wait for a token" : "no streamed request has ended");
    // Existing buttons are reused, so that focus and clicks are not lost.
    while (list.children.length > all.length) list.lastChild.remove();
    all.forEach((slow, at) => {
      let button = list.children[at];
      if (!button) {
        button = make("button", { type: "button", role: "radio" });
        button.addEventListener("click", () => { this.chosen = button.dataset.id; this.render(main.snapshot); });
        list.append(button);
      }
      const text = ms(slow.longest_wait_ms);
      if (button.textContent !== text) button.textContent = text;
      button.dataset.id = slow.id;
      button.setAttribute("aria-checked", String(slow === shown));
      button.tabIndex = slow === shown ? 0 : -1;
    });
    const values = find("slow-values"), svg = find("slow-line");
    svg.toggleAttribute("hidden", !shown);
    if (!shown) return values.replaceChildren();
    this.values(values, shown, snapshot);
    this.picture(svg, shown);
  },

  values(list, slow, snapshot) {
    const exact = slow.output_source && !["deltas_lower_bound", "tokenizer"].includes(slow.output_source);
    const tokens = known(slow.output_tokens) ? `${slow.output_tokens}${exact ? "" : " or more"}` : NONE;
    const rows = [
      ["Model", slow.model ?? "no model"], ["Route", slow.route], ["Outcome", word(slow.outcome)],
      ["First token", ms(slow.ttft_ms)], ["In the queue", ms(slow.queue_ms)], ["Longest gap", ms(slow.longest_gap_ms)],
      ["Duration", ms(slow.duration_ms)], ["Prompt", known(slow.input_tokens) ? `${slow.input_tokens} tokens` : NONE],
      ["Response", `${tokens} tokens`], ["Decode", speed(slow.decode_tokens_per_second, snapshot.reading)],
      ["Blocked on a slow client", ms(slow.blocked_ms)], ["Ended", `${time(slow.ended_seconds_ago)} ago`], ["Number", slow.id],
    ];
    if (snapshot.listeners.length > 1) rows.splice(2, 0, ["Listener", snapshot.listeners[slow.listener]?.name ?? NONE]);
    // Unchanged elements are kept, so that selected text stays selected.
    if (list.children.length !== rows.length) list.replaceChildren(...rows.map(([name]) => make("div", {}, make("dt", {}, name), make("dd"))));
    rows.forEach(([name, value], at) => {
      const [term, figure] = list.children[at].children;
      if (term.textContent !== name) term.textContent = name;
      if (figure.textContent !== value) figure.textContent = value;
    });
  },

  /** Top: cumulative tokens; bottom: phases. */
  picture(svg, slow) {
    const [width, height] = measure(svg), foot = 20, band = 14, top = 14, base = height - foot - band - 6;
    const end = Math.max(slow.duration_ms, 1), x = at => Math.max(0, Math.min(1, at / end)) * (width - 2) + 1, parts = [];
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5].find(mark => end / mark <= Math.max(3, width / 90)) ?? end / 4;
    for (let mark = 0; mark <= end; mark += step) {
      parts.push(draw("line", { class: "grid", x1: x(mark), x2: x(mark), y1: top, y2: height - foot }));
      if (x(mark) < width - 24) parts.push(draw("text", { x: x(mark) + (mark === 0 ? 0 : -2), y: height - 5, "text-anchor": mark === 0 ? "start" : "middle" }, shortTime(mark / 1e3)));
    }
    const all = slow.points.reduce((sum, [, tokens]) => sum + tokens, 0);
    let before = slow.ttft_ms ?? 0, widest = null, tokens = 0;
    const curve = [];
    for (const [at, count, gap] of slow.points) {
      if (gap > 0 && (!widest || gap > widest.gap)) widest = { gap, to: at, from: slow.events_per_point === 1 ? at - gap : before };
      if (curve.length > 0) curve.push([x(slow.events_per_point === 1 ? at : before), base - tokens / all * (base - top)]);
      tokens += count;
      curve.push([x(at), base - tokens / all * (base - top)]);
      before = at;
    }
    const waited = slow.ttft_ms ?? slow.duration_ms, gapIs = widest && widest.gap > 250 && widest.gap >= waited * 0.5;
    if (gapIs) {
      const [left, right] = [x(widest.from), x(widest.to)], middle = (left + right) / 2, room = Math.min(width - 60, Math.max(60, middle));
      parts.push(draw("rect", { class: "gap", x: left, y: top, width: Math.max(2, right - left), height: height - foot - top }));
      parts.push(draw("text", { class: "gaptext", x: room, y: top - 3, "text-anchor": "middle" }, `no token for ${ms(widest.gap)}`));
    }
    if (curve.length > 0) {
      parts.push(draw("path", { class: "curve", d: `M${curve.map(([cx, cy]) => `${cx.toFixed(1)},${cy.toFixed(1)}`).join(" L")}` }));
      const [lastX, lastY] = curve.at(-1);
      parts.push(draw("circle", { class: "dot", cx: lastX, cy: lastY, r: 3 }));
      const text = slow.events_per_point === 1 ? `${all} tokens, each event a step` : `${all} tokens, ${slow.events_per_point} events a step`;
      // The curve rises, so there is room below its end.
      parts.push(draw("text", { x: Math.max(lastX - 6, 190), y: base - 5, "text-anchor": "end" }, text));
    }
    const queued = Math.min(slow.queue_ms ?? 0, waited), last = slow.last_token_ms ?? waited;
    const phases = [["p-queue", 0, queued, "queue"], ["p-wait", queued, waited, known(slow.ttft_ms) ? "first token" : "no token"], ["p-decode", waited, last, "tokens"], ["p-rest", last, end, "end"]];
    const y = height - foot - band;
    for (const [kind, from, to, name] of phases) {
      const wide = x(to) - x(from);
      if (to <= from) continue;
      parts.push(draw("rect", { class: kind, x: x(from), y, width: Math.max(1, wide - 0.5), height: band, rx: 2 }));
      const text = `${name} ${ms(to - from)}`;
      if (kind !== "p-rest" && wide > text.length * 6.5 + 8) parts.push(draw("text", { class: "inband", x: x(from) + 5, y: y + 10.5 }, text));
    }
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `Time line: ${phases.filter(([, from, to]) => to > from).map(([, from, to, name]) => `${name} ${ms(to - from)}`).join(", ")}${gapIs ? `, no token for ${ms(widest.gap)}` : ""}`);
  },
};
