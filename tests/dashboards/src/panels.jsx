// Panels by their type: the components of Grafana's library, given what a dashboard's JSON says.

import { getDisplayValueAlignmentFactors, getFieldDisplayValues, VizOrientation } from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { useMemo } from 'react';

import { configured, fieldConfig } from './config.js';
import { Heatmap } from './heatmap.jsx';
import { Timeline } from './timeline.jsx';
import { XYChart } from './xychart.jsx';

/** One drawing for each value that the panel's reduction leaves. */
function Repeated({ panel, frames, theme, width, height, draw, sparkline = false, ...more }) {
  const values = useMemo(
    () =>
      getFieldDisplayValues({
        data: configured(panel, frames, theme),
        fieldConfig: fieldConfig(panel),
        reduceOptions: panel.options.reduceOptions,
        replaceVariables: (text) => text,
        sparkline,
        theme,
        timeZone: 'utc',
      }),
    [frames]
  );
  return (
    <VizRepeater
      source={values}
      getValues={() => values}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={draw}
      renderCounter={1}
      orientation={panel.options.orientation ?? VizOrientation.Auto}
      width={width}
      height={height}
      itemSpacing={3}
      {...more}
    />
  );
}

function Stat(about) {
  const { panel, range, theme } = about;
  const { colorMode, graphMode, justifyMode, text, textMode, wideLayout, percentChangeColorMode } = panel.options;
  const draw = ({ value, width, height, count, alignmentFactors }) => {
    const sparkline = value.sparkline && Object.assign(value.sparkline, { timeRange: range });
    const mode = textMode === 'auto' && count === 1 ? 'value' : textMode;
    return (
      <BigValue
        value={value.display}
        textMode={mode}
        {...{ count, sparkline, colorMode, graphMode, justifyMode, text, wideLayout, percentChangeColorMode, alignmentFactors, width, height, theme }}
      />
    );
  };
  return <Repeated {...about} draw={draw} sparkline={graphMode !== 'none'} autoGrid />;
}

function Bars(about) {
  const { displayMode, namePlacement, showUnfilled, text, valueMode } = about.panel.options;
  const draw = ({ value, width, height, orientation, alignmentFactors }) => (
    <BarGauge
      value={value.display}
      field={value.field}
      display={value.view?.getFieldDisplayProcessor?.(value.colIndex)}
      valueDisplayMode={valueMode}
      itemSpacing={displayMode === 'lcd' ? 2 : 10}
      lcdCellWidth={displayMode === 'lcd' ? 12 : 8}
      theme={about.theme}
      {...{ displayMode, namePlacement, showUnfilled, text, width, height, orientation, alignmentFactors }}
    />
  );
  return <Repeated {...about} draw={draw} itemSpacing={10} minVizHeight={16} minVizWidth={8} maxVizHeight={300} />;
}

/** A quantile of nothing is NaN: a line has a hole there, and the axis does not know of it. */
function withHoles(frames) {
  const hole = (value) => (Number.isNaN(value) ? null : value);
  return frames.map((frame) => ({ ...frame, fields: frame.fields.map((field) => ({ ...field, values: field.values.map(hole) })) }));
}

function Lines({ panel, frames, exemplars, annotations, range, theme, width, height }) {
  const data = useMemo(() => configured(panel, withHoles(frames), theme), [frames]);
  return (
    <TimeSeries frames={data} structureRev={1} timeRange={range} timeZone="utc" legend={panel.options.legend} options={panel.options} {...{ width, height }}>
      {(config) => {
        // Half of the last label of the time axis.
        config.setPadding?.([undefined, 20, undefined, undefined]);
        config.addHook('draw', (chart) => {
          annotations.forEach((one) => drawAnnotation(chart, one, theme));
          exemplars.forEach((one) => drawExemplar(chart, one, theme));
        });
        return null;
      }}
    </TimeSeries>
  );
}

/** A dashed line through the chart, with its mark below, as Grafana has it. */
function drawAnnotation({ ctx, bbox, valToPos }, { time, color }, theme) {
  const x = Math.round(valToPos(time, 'x', true));
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  const bottom = bbox.top + bbox.height;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = theme.visualization.getColorByName(color ?? 'red');
  ctx.setLineDash([5, 5]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bottom);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(x, bottom);
  ctx.lineTo(x - 5, bottom + 6);
  ctx.lineTo(x + 5, bottom + 6);
  ctx.fill();
  ctx.restore();
}

/** A small diamond at its value. */
function drawExemplar({ ctx, bbox, valToPos, series }, { time, value }, theme) {
  const [x, y] = [valToPos(time, 'x', true), valToPos(value, series[1].scale, true)];
  if (y < bbox.top || x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.fillStyle = theme.visualization.getColorByName('green');
  ctx.translate(x, y);
  ctx.rotate(Math.PI / 4);
  ctx.fillRect(-3, -3, 6, 6);
  ctx.restore();
}

function Table({ panel, frames, theme, width, height }) {
  const data = useMemo(() => configured(panel, frames, theme), [frames]);
  const { cellHeight, showHeader, sortBy } = panel.options;
  return <TableNG data={data[0]} noHeader={showHeader === false} fieldConfig={fieldConfig(panel)} structureRev={1} {...{ cellHeight, sortBy, width, height }} />;
}

export const PANELS = {
  bargauge: Bars,
  heatmap: Heatmap,
  stat: Stat,
  'state-timeline': Timeline,
  table: Table,
  timeseries: Lines,
  xychart: XYChart,
};
