// What Prometheus answers, as the data frames that Grafana's data source makes of it.

import { FieldType, rangeUtil, toDataFrame } from '@grafana/data';

import { fillIn } from './variables.js';

const number = (text) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

// Exemplars nearer to each other would be drawn one on the other.
const EXEMPLAR_PIXELS = 14;

export class Prometheus {
  /** All is asked for this time range; `scrape` is the seconds between two scrapes. */
  constructor(url, range, scrape) {
    Object.assign(this, { url, range, scrape });
    this.from = range.from.valueOf() / 1000;
    this.to = range.to.valueOf() / 1000;
  }

  async ask(path, parameters) {
    const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
    const answer = await (await fetch(`${this.url}/api/v1/${path}?${new URLSearchParams(given)}`)).json();
    if (answer.status !== 'success') throw new Error(answer.error);
    return answer.data;
  }

  labelValues(label, match) {
    return this.ask(`label/${label}/values`, { 'match[]': match, start: this.from, end: this.to });
  }

  /** Step and built-in variables of a panel of so many pixels, by the rules of the data source. */
  times(panel, width) {
    const { intervalMs } = rangeUtil.calculateInterval(this.range, Math.round(width), panel.interval || `${this.scrape}s`);
    const step = Math.max(intervalMs / 1000, this.scrape);
    const rate = Math.max(step + this.scrape, 4 * this.scrape);
    const span = Math.round(this.to - this.from);
    const builtin = { __rate_interval: `${rate}s`, __interval: `${step}s`, __interval_ms: step * 1000, __range: `${span}s`, __range_s: span };
    const [start, end] = [this.from, this.to].map((time) => Math.floor(time / step) * step);
    return { step, start, end, builtin };
  }

  /** Frames of all targets of a panel. */
  async frames(panel, variables, width) {
    const targets = (panel.targets ?? []).filter((target) => target.expr && !target.hide);
    const times = { ...this.times(panel, width), only: targets.length === 1 };
    const frames = await Promise.all(targets.map((target) => this.target(target, variables, times)));
    return frames.flat();
  }

  async target(target, variables, times) {
    const expr = fillIn(target.expr, variables, times.builtin);
    const series = target.instant && !target.range
      ? await this.ask('query', { query: expr, time: this.to })
      : await this.ask('query_range', { query: expr, start: times.start, end: times.end, step: times.step });
    const found = series.resultType === 'scalar' ? [{ metric: {}, value: series.result }] : series.result;
    if (target.format === 'table') return [tableFrame(target.refId, found, times.only ? 'Value' : `Value #${target.refId}`)];
    const frames = found.filter((one) => one.values || one.value).map((one) => seriesFrame(target, expr, one, times));
    // Heatmaps and legends count on the order of bounds.
    return target.format === 'heatmap' ? frames.sort((a, b) => bound(a) - bound(b)) : frames;
  }

  /** Exemplars of a panel's targets, the greatest of each stretch of time: `{ time, value }`. */
  async exemplars(panel, variables, width) {
    const times = this.times(panel, width);
    const targets = (panel.targets ?? []).filter((target) => target.exemplar && !target.hide);
    const found = await Promise.all(targets.map((target) =>
      this.ask('query_exemplars', { query: fillIn(target.expr, variables, times.builtin), start: this.from, end: this.to })));
    const stretch = ((this.to - this.from) * 1000 * EXEMPLAR_PIXELS) / width;
    const greatest = new Map();
    for (const { value, timestamp } of found.flat().flatMap(({ exemplars }) => exemplars)) {
      const one = { time: timestamp * 1000, value: Number(value) };
      const slot = Math.floor(one.time / stretch);
      if (one.value > (greatest.get(slot)?.value ?? -Infinity)) greatest.set(slot, one);
    }
    return [...greatest.values()];
  }

  /** Times at which annotations are: `{ name, color, time, text }`. */
  async annotations(dashboard, variables) {
    const all = (dashboard.annotations?.list ?? []).filter((one) => one.enable && one.expr);
    const { step, start, end, builtin } = this.times({}, 400);
    const found = await Promise.all(all.map(async (one) => {
      const { result } = await this.ask('query_range', { query: fillIn(one.expr, variables, builtin), start, end, step });
      // One that lasts is drawn where it begins.
      return result.flatMap(({ metric, values }) => values
        .filter(([time, value], at) => Number(value) && (at === 0 || time - values[at - 1][0] > 1.5 * step))
        .map(([time]) => ({ name: one.name, color: one.iconColor, time: time * 1000, text: legend(metric, one.titleFormat, one.name) })));
    }));
    return found.flat();
  }
}

export const bound = (frame) => number(frame.fields[1].labels?.le ?? 'NaN');

function tableFrame(refId, found, name) {
  const labels = [...new Set(found.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const rows = found.flatMap(({ metric, values, value }) => (values ?? [value]).map(([time, text]) => ({ metric, time, text })));
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: rows.map(({ time }) => time * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: rows.map(({ metric }) => metric[label] ?? '') })),
      { name, type: FieldType.number, values: rows.map(({ text }) => number(text)) },
    ],
  });
}

function seriesFrame(target, expr, { metric, values, value }, { step, start, end }) {
  let times = [value?.[0] * 1000];
  let numbers = [number(value?.[1])];
  if (values) {
    // Prometheus leaves holes out, Grafana's data source fills them with null: a line must break there.
    const at = new Map(values.map(([time, text]) => [Math.round(time * 1000), number(text)]));
    const steps = Math.floor((end - start) / step + 1e-6) + 1;
    times = Array.from({ length: steps }, (_, index) => Math.round((start + index * step) * 1000));
    numbers = times.map((time) => at.get(time) ?? null);
  }
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: times },
      { name: 'Value', type: FieldType.number, labels: metric, config: { displayNameFromDS: legend(metric, target.legendFormat, expr) }, values: numbers },
    ],
  });
}

function legend(metric, format, expr) {
  if (format && format !== '__auto') return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => metric[label] ?? '');
  const { __name__: name = '', ...labels } = metric;
  const told = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  return told.length ? `${name}{${told.join(', ')}}` : name || expr;
}
