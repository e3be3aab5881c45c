// Axes of the charts that are drawn here as SVG.

import { dateTimeFormat } from '@grafana/data';

const FONT = 12;
// About as wide as a letter is.
export const LETTER = 7;

/** Round numbers between two, about so many. */
export function ticks(min, max, many) {
  const rough = (max - min) / many;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.ceil(min / step);
  return Array.from({ length: Math.floor(max / step) - first + 1 }, (_, index) => (first + index) * step);
}

const SECOND = 1000;
const STEPS = [1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400].map((step) => step * SECOND);

export function TimeAxis({ from, to, x, y, theme, width }) {
  const step = STEPS.find((one) => one >= (to - from) / (width / 90)) ?? STEPS.at(-1);
  const first = Math.ceil(from / step);
  const times = Array.from({ length: Math.floor(to / step) - first + 1 }, (_, index) => (first + index) * step);
  const format = step < 60 * SECOND ? 'HH:mm:ss' : 'HH:mm';
  // A label that would not fit at the edge is left out.
  const fits = (time) => x(to) - x(time) >= (LETTER * format.length) / 2;
  return times.filter(fits).map((time) => (
    <text key={time} x={x(time)} y={y} textAnchor="middle" fontSize={FONT} fill={theme.colors.text.primary}>
      {dateTimeFormat(time, { format, timeZone: 'utc' })}
    </text>
  ));
}

/** Powers of ten between two, and their halves and fifths where there are few. */
export function logTicks(min, max) {
  const powers = Array.from({ length: Math.ceil(Math.log10(max / min)) + 2 }, (_, index) => 10 ** (Math.floor(Math.log10(min)) + index));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((one) => one >= min && one <= max);
}

/** Numbers down the left side, with lines across where `to` is given. */
export function SideAxis({ at, y, text, left, to, theme }) {
  return at.map((value) => (
    <g key={value}>
      {to && <line x1={left} x2={to} y1={y(value)} y2={y(value)} stroke={theme.colors.border.weak} />}
      <text x={left - 8} y={y(value) + 4} textAnchor="end" fontSize={FONT} fill={theme.colors.text.primary}>
        {text(value)}
      </text>
    </g>
  ));
}
