// Points of one number against another: the library has no such chart.

import { formattedValueToString, getFieldDisplayName } from '@grafana/data';
import { useMemo } from 'react';

import { LETTER, logTicks, SideAxis, ticks } from './axes.jsx';
import { configured } from './config.js';

const [LEFT, BOTTOM, TOP] = [76, 60, 8];

function matches(matcher, field, frame, frames) {
  if (!matcher) return true;
  const name = getFieldDisplayName(field, frame, frames);
  const options = matcher.options;
  if (matcher.id === 'byName') return name === options || field.name === options;
  if (matcher.id === 'byRegexp') return new RegExp(options.replace(/^\/|\/$/g, '')).test(name);
  if (matcher.id === 'byType') return field.type === options;
  if (matcher.id === 'byFrameRefID') return frame.refId === options;
  return false;
}

/** Series of points: by the panel's own choice of fields, else the first number of each frame against its others. */
function series({ options }, frames) {
  const numbers = (frame) => frame.fields.filter(({ type }) => type === 'number');
  const found = [];
  const wanted = options.series?.length ? options.series : [{}];
  for (const frame of frames) {
    for (const one of wanted) {
      const x = numbers(frame).find((field) => matches(one.x?.matcher, field, frame, frames));
      const ys = numbers(frame).filter((field) => field !== x && matches(one.y?.matcher, field, frame, frames));
      for (const y of x ? ys : []) found.push({ name: one.name?.fixed ?? getFieldDisplayName(y, frame, frames), x, y, color: one.color?.fixed });
    }
  }
  return found;
}

export function XYChart({ panel, frames, theme, width, height }) {
  const all = useMemo(() => series(panel, configured(panel, frames, theme)), [frames]);
  const points = all.map(({ x, y }) => x.values.map((value, at) => [value, y.values[at]]).filter((pair) => pair.every(Number.isFinite)));
  const flat = points.flat();
  if (!flat.length) return null;
  const edge = (axis) => Math.max(...flat.map((pair) => pair[axis])) * 1.05 || 1;
  const [right, top] = [edge(0), edge(1)];
  const { x: first, y: second } = all[0];
  const log = second.config.custom?.scaleDistribution?.type === 'log';
  const low = log ? Math.min(...flat.map((pair) => pair[1]).filter((value) => value > 0)) / 1.2 : 0;
  const share = (value) => (log ? Math.log(Math.max(value, low) / low) / Math.log(top / low) : value / top);
  const x = (value) => LEFT + (value / right) * (width - LEFT - 12);
  const y = (value) => height - BOTTOM - share(value) * (height - BOTTOM - TOP);
  const text = (field) => (value) => formattedValueToString(field.display(value));
  const color = (index) => theme.visualization.getColorByName(all[index].color ?? theme.visualization.palette[index % theme.visualization.palette.length]);
  const size = panel.fieldConfig?.defaults?.custom?.pointSize?.fixed ?? 5;
  return (
    <svg width={width} height={height}>
      <SideAxis at={log ? logTicks(low, top) : ticks(0, top, height / 50)} y={y} text={text(second)} left={LEFT} to={width} theme={theme} />
      {ticks(0, right, width / 90).map((value) => (
        <g key={value}>
          <line x1={x(value)} x2={x(value)} y1={TOP} y2={height - BOTTOM} stroke={theme.colors.border.weak} />
          <text x={x(value)} y={height - BOTTOM + 16} textAnchor="middle" fontSize={12} fill={theme.colors.text.primary}>
            {text(first)(value)}
          </text>
        </g>
      ))}
      <text x={(LEFT + width) / 2} y={height - 24} textAnchor="middle" fontSize={12} fill={theme.colors.text.primary}>
        {first.config.custom?.axisLabel}
      </text>
      <text transform={`translate(12 ${(height - BOTTOM) / 2}) rotate(-90)`} textAnchor="middle" fontSize={12} fill={theme.colors.text.primary}>
        {second.config.custom?.axisLabel}
      </text>
      {points.map((pairs, index) => pairs.map(([a, b], at) => <circle key={`${index} ${at}`} cx={x(a)} cy={y(b)} r={size / 2} fill={color(index)} opacity={0.75} />))}
      {(panel.options.legend?.showLegend === false ? [] : all).map(({ name }, index) => {
        const before = all.slice(0, index).reduce((sum, one) => sum + 34 + LETTER * one.name.length, 0);
        return (
          <g key={index} transform={`translate(${LEFT + before} ${height - 4})`} fontSize={12}>
            <circle cx={5} cy={-4} r={4} fill={color(index)} />
            <text x={14} fill={theme.colors.text.primary}>
              {name}
            </text>
          </g>
        );
      })}
    </svg>
  );
}
