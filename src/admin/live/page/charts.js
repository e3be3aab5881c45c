// Charts of distributions and of the last minute.

const charts = {
  /** Area chart of the last minute: one value per second, the latest on the right. */
  spark(svg, values) {
    const [width, height] = measure(svg), most = Math.max(1e-9, ...values), step = width / 59;
    const points = values.map((value, at) => [width - (values.length - 1 - at) * step, height - 1 - value / most * (height - 6)]);
    if (points.length < 2) return svg.replaceChildren();
    const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");
    svg.replaceChildren(
      draw("path", { class: "area", d: `M${points[0][0].toFixed(1)},${height} L${line} L${width},${height} Z` }),
      draw("path", { class: "stroke", d: `M${line}` }),
    );
  },

  /** Stacked columns of the last minute. */
  stacks(svg, seconds, parts) {
    const [width, height] = measure(svg), step = width / 60;
    const most = Math.max(1e-9, ...seconds.map(second => parts.reduce((sum, part) => sum + second[part] / second.seconds, 0)));
    const columns = [];
    seconds.forEach((second, at) => {
      let y = height;
      for (const part of parts) {
        const tall = second[part] / second.seconds / most * (height - 5);
        if (tall > 0) columns.push(draw("rect", { class: part, x: width - (seconds.length - at) * step, y: y - tall, width: Math.max(1, step - 0.6), height: tall }));
        y -= tall;
      }
    });
    svg.replaceChildren(...columns);
  },

  /** A distribution on a logarithmic axis. `limit`: threshold of an objective; values beyond it are marked. `bands`: limits of named ranges, which a strip below the axis shows. */
  distribution(svg, reported, { tick, value, limit, beyond, name, limitName, bands = [] }) {
    const strip = bands.length > 0 ? 16 : 0, [width, height] = measure(svg), foot = 20 + strip, top = 22, base = height - foot;
    if (reported.count === 0) {
      svg.setAttribute("aria-label", `${name}: no requests ended in the last minute`);
      return svg.replaceChildren(draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no requests ended in the last minute"));
    }
    const least = reported.buckets[0][0] || reported.buckets[0][1] / 2, last = reported.buckets.at(-1), greatest = last[1] ?? last[0] * 2;
    // Round to octaves, so that the axis does not move with small changes.
    let from = 2 ** Math.floor(Math.log2(least) - 0.25), to = 2 ** Math.ceil(Math.log2(greatest) + 0.25);
    const middle = Math.sqrt(from * to);
    if (to / from < 16) [from, to] = [middle / 4, middle * 4];
    if (known(limit) && limit > 0) [from, to] = [Math.min(from, limit / 1.3), Math.max(to, limit * 1.3)];
    const span = Math.log(to / from), x = at => Math.log(Math.max(from, Math.min(to, at)) / from) / span * width;
    const most = Math.max(...reported.buckets.map(([, , count]) => count)), parts = [];
    for (const mark of this.marks(from, to, width)) {
      parts.push(draw("line", { class: "grid", x1: x(mark), x2: x(mark), y1: top, y2: base }));
      const text = draw("text", { x: x(mark), y: height - 5, "text-anchor": "middle" }, tick(mark));
      if (x(mark) > 12 && x(mark) < width - 14) parts.push(text);
    }
    parts.push(draw("line", { class: "axis", x1: 0, x2: width, y1: base + 0.5, y2: base + 0.5 }));
    (strip > 0 ? [0, ...bands] : []).forEach((lower, band) => {
      const left = lower > from ? x(lower) : 0, right = band < bands.length ? x(bands[band]) : width;
      if (right - left < 1) return;
      parts.push(draw("rect", { class: `band-${band}`, x: left, y: base + 3, width: right - left, height: strip - 3 }));
      if (right - left > BANDS[band].length * 6.5) parts.push(draw("text", { class: "inband", x: (left + right) / 2, y: base + strip - 3, "text-anchor": "middle" }, BANDS[band]));
    });
    const boxes = reported.buckets.map(([lower, upper, count]) => {
      const left = x(lower || from), right = x(upper ?? to), tall = Math.max(2, count / most * (base - top - 4));
      const is = known(limit) && (beyond === "above" ? lower >= limit : (upper ?? to) <= limit);
      const box = draw("rect", { class: is ? "bar beyond" : "bar", x: left + 0.5, y: base - tall, width: Math.max(1.5, right - left - 1), height: tall, rx: 1.5 });
      parts.push(box);
      return { left, right, lower, upper, count, box };
    });
    if (known(limit)) {
      const at = x(limit), end = at > width * 0.7;
      parts.push(draw("line", { class: "limit", x1: at, x2: at, y1: top - 4, y2: base }));
      parts.push(draw("text", { class: "limit", x: end ? at - 4 : at + 4, y: top + 6, "text-anchor": end ? "end" : "start" }, limitName));
    }
    // Omit a quantile label that would overlap the previous one.
    let taken = -Infinity;
    for (const share of ["p10", "p50", "p90", "p99"]) {
      const at = x(reported[share]), main = share === "p50";
      parts.push(draw("line", { class: main ? "mark" : "mark soft", x1: at, x2: at, y1: 14, y2: base }));
      if (at - taken < 26) continue;
      parts.push(draw("text", { class: main ? "strong" : "", x: Math.max(10, Math.min(width - 10, at)), y: 10, "text-anchor": "middle" }, share));
      taken = at;
    }
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `${name}: ${reported.count} in the last minute, a tenth under ${value(reported.p10)}, half under ${value(reported.p50)}, nine tenths under ${value(reported.p90)}, 99 of a hundred under ${value(reported.p99)}`);
    svg.onpointermove = svg.onpointerdown = event => {
      const at = event.clientX - svg.getBoundingClientRect().left, found = boxes.find(box => at >= box.left && at < box.right);
      boxes.forEach(box => box.box.classList.toggle("on", box === found));
      if (!found) return tip.hide();
      const title = found.upper === null ? `${value(found.lower)} and more` : `${value(found.lower)} to ${value(found.upper)}`;
      tip.show(event.clientX, event.clientY, title, [["requests", String(found.count)], ["share", percent(found.count / reported.count, 1)]]);
    };
    svg.onpointerleave = () => { boxes.forEach(box => box.box.classList.remove("on")); tip.hide(); };
  },

  /** Round numbers on a logarithmic axis, as many as fit. */
  marks(from, to, width) {
    const all = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1) all.push(...[1, 2, 5].map(part => part * 10 ** power));
    const within = all.filter(mark => mark >= from && mark <= to), room = Math.max(2, Math.floor(width / 52));
    if (within.length <= room) return within;
    const tens = within.filter(mark => /^[0.]*1/.test(mark.toPrecision(1)) || mark.toExponential()[0] === "1");
    return tens.length >= 2 ? tens : within.filter((_, at) => at % Math.ceil(within.length / room) === 0);
  },
};
