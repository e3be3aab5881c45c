// A heatmap of cumulative buckets: the library has none.

import { formattedValueToString, getValueFormat } from '@grafana/data';
import * as schemes from 'd3-scale-chromatic';

import { LETTER, SideAxis, TimeAxis } from './axes.jsx';
import { bound } from './prometheus.js';

const [BOTTOM, LEGEND] = [22, 30];
const LABEL_HEIGHT = 18;
// Narrower cells have no gap between them.
const GAP_FROM = 6;

/** Rows of buckets that hold something, each less what is in the one below. */
function buckets(frames) {
  const sorted = [...frames].sort((a, b) => bound(a) - bound(b));
  const rows = sorted.map((frame, index) => {
    const below = sorted[index - 1]?.fields[1].values;
    const counts = frame.fields[1].values.map((count, at) => Math.max(0, (count ?? 0) - (below?.[at] ?? 0)));
    return { bound: bound(frame), counts };
  });
  const used = rows.map(({ counts }) => counts.some((count) => count > 1e-9));
  return rows.slice(Math.max(0, used.indexOf(true) - 1), used.lastIndexOf(true) + 2);
}

export function Heatmap({ panel, frames, exemplars, range, theme, width, height }) {
  const rows = buckets(frames);
  if (!rows.length) return null;
  const times = frames[0].fields[0].values;
  const step = times[1] - times[0];
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const { color = {}, yAxis = {}, legend, cellGap = 1 } = panel.options;
  const most = Math.max(...rows.flatMap(({ counts }) => counts));
  const scheme = schemes[`interpolate${color.scheme ?? 'Oranges'}`] ?? schemes.interpolateOranges;
  const shade = (count) => {
    const share = (count / most) ** (color.exponent ?? 0.5);
    return scheme(theme.isDark === Boolean(color.reverse) ? share : 1 - share);
  };
  const format = getValueFormat(yAxis.unit ?? panel.fieldConfig?.defaults?.unit ?? 'short');
  const name = (row) => (Number.isFinite(rows[row].bound) ? formattedValueToString(format(rows[row].bound, yAxis.decimals)) : '+Inf');
  const left = 12 + LETTER * Math.max(...rows.map((_, row) => name(row).length));
  const bottom = height - BOTTOM - (legend?.show === false ? 0 : LEGEND);
  const x = (time) => Math.round(left + ((time - from) / (to - from)) * (width - left));
  const y = (row) => Math.round(bottom - (row / rows.length) * bottom);
  const gap = x(times[1]) - x(times[0]) < GAP_FROM ? 0 : cellGap;
  const every = Math.ceil(LABEL_HEIGHT / (bottom / rows.length));
  const shown = rows.map((_, row) => row).filter((row) => row % every === 0);
  return (
    <svg width={width} height={height}>
      {rows.map(({ counts }, row) =>
        counts.map((count, at) => {
          const begin = Math.max(left, x(times[at] - step));
          const wide = x(times[at]) - begin - gap;
          const high = Math.max(1, y(row) - y(row + 1) - cellGap);
          return count > 1e-9 && wide > 0 && <rect key={`${row} ${at}`} x={begin} y={y(row + 1)} width={wide} height={high} fill={shade(count)} />;
        })
      )}
      {exemplars.map(({ time, value }) => {
        const row = rows.findIndex((one) => value <= one.bound);
        const at = `translate(${x(time)} ${y(row + 0.5)}) rotate(45)`;
        return row >= 0 && x(time) >= left && <rect key={time} x={-3} y={-3} width={6} height={6} transform={at} fill={panel.options.exemplars?.color ?? 'rgba(255,0,255,0.7)'} />;
      })}
      <SideAxis at={shown} y={(row) => y(row + 0.5)} text={name} left={left} theme={theme} />
      <TimeAxis {...{ from, to, x, theme }} width={width - left} y={bottom + 16} />
      {legend?.show !== false && (
        <g transform={`translate(${left} ${bottom + BOTTOM + 2})`} fontSize={12} fill={theme.colors.text.secondary}>
          {Array.from({ length: 40 }, (_, index) => (
            <rect key={index} x={index * 6} width={6} height={8} fill={shade(((index + 1) / 40) * most)} />
          ))}
          <text y={22}>0</text>
          <text x={240} y={22} textAnchor="end">
            {formattedValueToString(getValueFormat('short')(most))}
          </text>
        </g>
      )}
    </svg>
  );
}
