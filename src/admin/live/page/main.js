// The feed and its display.

const SILENT_MS = 3500, HIDDEN_MS = 20000, POLL_MS = 2000, LONGEST_PAUSE_MS = 10000;

const main = {
  snapshot: null, paused: false, source: null, heard: 0, tries: 0, timer: null, waking: false,

  begin() {
    theme.begin();
    bars.begin(find("bars"));
    timeline.begin();
    theme.listeners.push(() => this.render());
    addEventListener("resize", () => this.render());
    find("order").addEventListener("change", event => { bars.order = event.target.value; bars.lanes = []; bars.arrange(performance.now()); });
    find("pause").addEventListener("click", () => this.pause());
    addEventListener("keydown", event => {
      const typing = event.target.closest("button, select, a");
      if (event.key === " " && !typing) { event.preventDefault(); this.pause(); }
    });
    document.addEventListener("visibilitychange", () => this.visibilityChanged());
    setInterval(() => this.checkSilence(), 500);
    this.connect();
    this.wake();
  },

  // --- the feed

  connect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = new EventSource("live/events");
    this.source.addEventListener("snapshot", event => this.take(JSON.parse(event.data), "live"));
    // The browser reconnects automatically, unless the state is CLOSED, for example after an error response.
    this.source.onerror = () => { if (this.source?.readyState === EventSource.CLOSED) this.refused(); else this.state("lost", "connection lost, reconnecting"); };
  },

  /** Called when the server rejects the feed, for example because it has 16 watchers. Falls back to polling single snapshots. */
  async refused() {
    this.tries += 1;
    try {
      const response = await fetch("live/snapshot", { cache: "no-store" });
      if (!response.ok) throw new Error(response.status);
      this.take(await response.json(), "polling");
      this.timer = setTimeout(() => this.tries % 8 === 0 ? this.connect() : this.refused(), POLL_MS);
    } catch {
      this.state("lost", "connection lost, reconnecting");
      this.timer = setTimeout(() => this.connect(), Math.min(LONGEST_PAUSE_MS, 1000 * this.tries));
    }
  },

  take(snapshot, how) {
    this.heard = performance.now();
    if (how === "live") this.tries = 0;
    if (this.paused) return;
    const restarted = this.snapshot && snapshot.uptime_seconds < this.snapshot.uptime_seconds;
    if (restarted) { bars.streams.clear(); bars.lanes = []; }
    this.snapshot = snapshot;
    this.state(how, how === "live" ? "live" : "updates every two seconds: too many viewers");
    bars.take(snapshot, this.heard);
    this.render();
    this.wake();
  },

  state(state, text) {
    if (this.paused && state !== "paused") return;
    const element = find("connection");
    element.dataset.state = state;
    fill("connection", text);
    find("main").classList.toggle("stale", state === "lost");
  },

  /** Shows the connection as lost if the feed has been silent for `SILENT_MS`. */
  checkSilence() {
    const silent = performance.now() - this.heard;
    if (this.snapshot && !this.paused && this.source && silent > SILENT_MS && find("connection").dataset.state === "live") this.state("lost", "no data, waiting");
  },

  /** Closes the feed when the page has been hidden for `HIDDEN_MS`, and reopens it when the page is visible again. */
  visibilityChanged() {
    clearTimeout(this.hidden);
    if (document.hidden) this.hidden = setTimeout(() => { this.source?.close(); this.source = null; clearTimeout(this.timer); }, HIDDEN_MS);
    else { if (!this.source) this.connect(); this.wake(); }
  },

  pause() {
    this.paused = !this.paused;
    find("pause").setAttribute("aria-pressed", String(this.paused));
    fill("pause", this.paused ? "Resume" : "Pause");
    if (this.paused) this.state("paused", "paused"); else { this.state("live", "live"); this.wake(); }
  },

  // --- display

  /** Draws on every animation frame while anything moves. */
  wake() {
    if (this.waking) return;
    this.waking = true;
    let skipped = 0;
    const frame = now => {
      const at = this.paused ? bars.received : now;
      // If drawing is slow, skip frames. This is hardly visible, because bars grow slowly.
      if (skipped >= Math.min(3, Math.floor(bars.cost / 7))) { bars.draw(at); skipped = 0; } else skipped += 1;
      bars.canvas.dataset.cost = bars.cost.toFixed(2);
      const moves = !document.hidden && !this.paused && (bars.streams.size > 0 || !this.snapshot);
      if (moves) requestAnimationFrame(frame); else this.waking = false;
    };
    requestAnimationFrame(frame);
  },

  render() {
    const snapshot = this.snapshot;
    if (!snapshot) return;
    fill("about", `version ${snapshot.version}, up ${time(snapshot.uptime_seconds)}`);
    find("draining").hidden = !snapshot.draining;
    this.tiles(snapshot);
    this.empty(snapshot);
    this.objectives(snapshot.objectives);
    this.distributions(snapshot);
    timeline.render(snapshot);
    this.engines(snapshot.listeners);
  },

  tiles({ rates, in_flight: flight, ttft_seconds: first, decode_tokens_per_second: decode, listeners, reading }) {
    fill("tokens", digits(rates.tokens_per_second));
    charts.spark(find("tokens-spark"), rates.history.map(second => second.tokens / second.seconds));
    fill("flying", digits(flight.requests));
    const parts = [`${flight.streaming} streaming`, `${flight.waiting} waiting`];
    if (flight.unstreamed > 0) parts.push(`${flight.unstreamed} not streamed`);
    if (flight.blocked > 0) parts.push(`${flight.blocked} blocked on slow clients`);
    if (flight.stalled > 0) parts.push(`${flight.stalled} stalled`);
    if (flight.waiting > 0) parts.push(`longest wait ${time(flight.longest_wait_seconds)}`);
    fill("flying-more", parts.join(", "));
    fill("first", time(first.p50));
    fill("first-more", first.count > 0 ? `p90 ${time(first.p90)}, p99 ${time(first.p99)}` : "none in the last minute");
    fill("decode", decode.count > 0 ? `${digits(decode.p50)} tok/s` : NONE);
    fill("decode-more", decode.count > 0 ? `${BANDS[band(decode.p50, reading)]}; slowest tenth under ${digits(decode.p10)}` : "none in the last minute");
    fill("requests", digits(rates.requests_per_second));
    const failed = Object.entries(rates.failed_per_second).sort((a, b) => b[1] - a[1]);
    fill("requests-more", failed.length > 0 ? failed.slice(0, 2).map(([outcome, rate]) => `${word(outcome)} ${digits(rate)}`).join(", ") : "no failures");
    charts.stacks(find("requests-spark"), rates.history, ["failed", "aborted", "ok"]);
    const order = ["unreachable", "wedged", "working", "idle"], worst = [...listeners].sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state))[0];
    fill("engine", worst?.state ?? NONE);
    find("engine").dataset.state = worst?.state ?? "";
    // For several engines, show the sums of running and queued requests, and the fullest KV cache.
    const all = name => listeners.map(listener => listener.own?.[name]).filter(known), sum = values => values.reduce((total, value) => total + value, 0), reported = [];
    const [running, waiting, usage] = ["running", "waiting", "kv_usage"].map(all);
    if (worst?.state === "wedged") reported.push(`silent for ${time(worst.silent_seconds)}`);
    if (listeners.some(listener => listener.listening === "address_in_use")) reported.push("bypassed: the listen address is in use");
    if (running.length > 0) reported.push(`${digits(sum(running))} running`);
    if (waiting.length > 0) reported.push(`${digits(sum(waiting))} queued`);
    if (usage.length > 0) reported.push(`KV ${percent(Math.max(...usage), 0)}`);
    fill("engine-more", reported.join(", ") || worst?.engine || "not detected yet");
  },

  empty({ in_flight: flight, since_start: start }) {
    const element = find("empty"), ended = Object.values(start.requests).reduce((sum, n) => sum + n, 0);
    element.hidden = flight.requests > 0;
    element.textContent = ended > 0 ? `Nothing is in flight.\n${digits(ended)} requests have ended since the start.`
      : "No traffic yet.\nPoint a client at the address that tokometer listens on: its streams appear here automatically.";
    const left = flight.left_out > 0 ? `the oldest ${flight.streams.length} of ${flight.requests}` : `${flight.requests}`;
    fill("streams-note", flight.requests > 0 ? `${left}; the length of a bar shows the age of its stream` : "");
    find("bars").setAttribute("aria-label", `Streams in flight as bars: ${flight.requests} in total, ${flight.waiting} waiting, ${flight.streaming} streaming and ${flight.unstreamed} not streamed. Arrow keys select a stream.`);
  },

  objectives(all) {
    const words = { idle: "no traffic", ok: "met", over: "over budget", burning: "burning" };
    const limit = one => Object.entries(one.thresholds).filter(([, value]) => value > 0).map(([name, value]) => ({
      ttft_seconds: `first token in ${time(value)}`, ttft_seconds_per_1k_uncached_tokens: `and ${time(value)} per 1k uncached tokens`,
      decode_tokens_per_second: `at least ${digits(value)} tok/s`, gap_seconds: `no gap over ${time(value)}`,
    })[name] ?? `${word(name)} ${digits(value)}`).join(" ");
    const items = all.map(one => {
      const { good, bad, burn_rate: burn, reasons } = one.recent, evaluated = good + bad;
      const why = Object.entries(reasons).sort((a, b) => b[1] - a[1]).slice(0, 2).map(([reason, n]) => `${word(reason)} ${n}`).join(", ");
      // The bar shows the share of bad requests; the mark shows the share allowed by the target.
      const allowed = 1 - one.target, share = evaluated > 0 ? bad / evaluated : 0, full = Math.min(1, Math.max(allowed * 3, share * 1.1));
      const meter = make("div", { class: "meter", role: "img", "data-state": one.state, "aria-label": `${percent(share)} bad, ${percent(allowed)} allowed` }, make("i"), make("u"));
      meter.children[0].style.width = `${share / full * 100}%`;
      meter.children[1].style.left = `calc(${allowed / full * 100}% - 1px)`;
      const target = [`target ${percent(one.target)}`, limit(one)].filter(Boolean).join(", ");
      const reported = evaluated > 0 ? `${percent(good / evaluated)} of ${evaluated} good; ${target}` : target;
      const burns = known(burn) && bad > 0 ? make("span", { class: "small" }, `burn rate ${digits(burn)}×: ${why}`) : "";
      return make("li", {}, make("strong", {}, word(one.name)), make("span", { class: "badge", "data-state": one.state }, words[one.state] ?? one.state), meter, make("span", { class: "small" }, reported), burns);
    });
    const none = make("li", {}, make("span", { class: "small" }, "No objectives are configured."));
    find("slo").replaceChildren(...(items.length > 0 ? items : [none]));
  },

  distributions({ ttft_seconds: first, decode_tokens_per_second: decode, objectives, reading }) {
    // Several objectives of a kind apply to different requests: there is no single limit to draw.
    const threshold = (kind, name) => {
      const all = objectives.filter(one => one.kind === kind);
      return all.length === 1 ? all[0].thresholds[name] : undefined;
    };
    const note = reported => reported.count > 0 ? `${reported.count} in the last minute` : "";
    fill("ttft-note", note(first));
    fill("rate-note", note(decode) + (decode.at_least > 0 ? `, ${decode.at_least} of them lower bounds` : ""));
    charts.distribution(find("ttft-chart"), first, { name: "Time to first token", tick: shortTime, value: time, limit: threshold("ttft", "ttft_seconds"), beyond: "above", limitName: "objective" });
    charts.distribution(find("rate-chart"), decode, { name: "Decode tokens per second", tick: mark => String(+mark.toPrecision(2)), value: rate => `${digits(rate)} tok/s`, limit: threshold("decode_rate", "decode_tokens_per_second"), beyond: "below", limitName: "objective", bands: [reading.slow, reading.comfortable, reading.fast] });
  },

  engines(listeners) {
    const items = listeners.map(listener => {
      const own = listener.own, values = [["Running", digits(own?.running)], ["Queued", digits(own?.waiting)], ["Queue wait", time(own?.queue_seconds)], ["Prefix cache", percent(own?.cache_ratio, 0)], ["Preempted", digits(own?.preemptions)], ["Last token", known(listener.silent_seconds) ? `${time(listener.silent_seconds)} ago` : "none pending"]];
      const parts = [make("div", { class: "row" }, make("strong", {}, [listener.name, listener.engine].filter(Boolean).join(", ")), make("span", { class: "badge", "data-state": listener.state }, listener.state))];
      if (known(own?.kv_usage)) {
        const meter = make("div", { class: "meter", role: "img", "data-state": own.kv_usage > 0.95 ? "over" : "plain", "aria-label": `KV cache ${percent(own.kv_usage, 0)} full` }, make("i"));
        meter.children[0].style.width = `${own.kv_usage * 100}%`;
        parts.push(make("div", { class: "row small" }, make("span", {}, "KV cache"), make("span", {}, percent(own.kv_usage, 0))), meter);
      }
      parts.push(make("dl", {}, ...values.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))));
      if (!own) parts.push(make("p", { class: "small" }, "Its metrics are not scraped, or the scrape failed."));
      return make("li", {}, ...parts);
    });
    find("engine-list").replaceChildren(...items);
  },
};

main.begin();
