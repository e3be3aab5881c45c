// A state timeline: the library has none.

import { formattedValueToString, getFieldDisplayName } from '@grafana/data';
import { useMemo } from 'react';

import { LETTER, TimeAxis } from './axes.jsx';
import { configured } from './config.js';

const BOTTOM = 22;
const LEGEND = 26;

/** Stretches of one state: from and to in milliseconds, text and colour. A hole in the series is a hole here. */
function stretches(times, field) {
  const step = times[1] - times[0] || 0;
  const found = [];
  field.values.forEach((value, at) => {
    if (value === null || value === undefined) return;
    const { color, ...display } = field.display(value);
    const text = formattedValueToString(display);
    const last = found.at(-1);
    if (last && last.text === text && last.to === times[at]) last.to += step;
    else found.push({ from: times[at], to: times[at] + step, text, color });
  });
  return found;
}

export function Timeline({ panel, frames, range, theme, width, height }) {
  const rows = useMemo(() => {
    const data = configured(panel, frames, theme);
    return data.flatMap((frame) => {
      const times = frame.fields.find(({ type }) => type === 'time').values;
      const states = frame.fields.filter(({ type }) => type !== 'time');
      return states.map((field) => ({ name: getFieldDisplayName(field, frame, data), states: stretches(times, field) }));
    });
  }, [frames]);
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const legend = panel.options.legend?.showLegend === false ? [] : [...new Map(rows.flatMap(({ states }) => states).map((one) => [one.text, one])).values()];
  const left = Math.min(width / 2, 16 + LETTER * Math.max(...rows.map(({ name }) => name.length)));
  const bottom = height - BOTTOM - (legend.length ? LEGEND : 0);
  const tall = bottom / rows.length;
  const bar = tall * (panel.options.rowHeight ?? 0.9);
  const x = (time) => left + ((Math.min(time, to) - from) / (to - from)) * (width - left);
  const texts = panel.options.showValue !== 'never';
  return (
    <svg width={width} height={height}>
      {rows.map(({ name, states }, row) => (
        <g key={name} transform={`translate(0 ${row * tall + (tall - bar) / 2})`} fontSize={12}>
          <text x={left - 8} y={bar / 2 + 4} textAnchor="end" fill={theme.colors.text.primary}>
            {name}
          </text>
          {states.map((one) => {
            const [begin, wide] = [Math.max(left, x(one.from)), x(one.to) - Math.max(left, x(one.from))];
            return (
              <g key={one.from}>
                <rect x={begin} width={Math.max(0, wide)} height={bar} fill={one.color} opacity={0.8} />
                {texts && wide > LETTER * one.text.length + 10 && (
                  <text x={begin + 6} y={bar / 2 + 4} fill={theme.colors.getContrastText(one.color)}>
                    {one.text}
                  </text>
                )}
              </g>
            );
          })}
        </g>
      ))}
      <TimeAxis {...{ from, to, x, theme }} width={width - left} y={bottom + 16} />
      {legend.map(({ text, color }, index) => {
        const before = legend.slice(0, index).reduce((sum, one) => sum + 32 + LETTER * one.text.length, 0);
        return (
          <g key={text} transform={`translate(${left + before} ${height - 8})`}>
            <rect y={-5} width={14} height={4} rx={2} fill={color} />
            <text x={20} fontSize={12} fill={theme.colors.text.primary}>
              {text}
            </text>
          </g>
        );
      })}
    </svg>
  );
}
