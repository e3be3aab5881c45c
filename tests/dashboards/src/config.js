// What a panel's field configuration and transformations make of its frames. Grafana registers these parts when it starts.

import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  FieldConfigOptionsRegistry,
  identityOverrideProcessor,
  numberOverrideProcessor,
  standardTransformers,
  standardTransformersRegistry,
  thresholdsOverrideProcessor,
  transformDataFrame,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from '@grafana/data';
import { firstValueFrom } from 'rxjs';

/** A series can be named by its labels; most have no name of their own. */
const displayName = (text, { field }) => text?.replace(/\$\{__field\.labels\.(\w+)\}/g, (_, label) => field.labels?.[label] ?? '');

const PROCESSORS = {
  decimals: numberOverrideProcessor,
  displayName,
  mappings: valueMappingsOverrideProcessor,
  max: numberOverrideProcessor,
  min: numberOverrideProcessor,
  thresholds: thresholdsOverrideProcessor,
  unit: unitOverrideProcessor,
};
const STANDARD = [...Object.keys(PROCESSORS), 'actions', 'color', 'description', 'fieldMinMax', 'filterable', 'links', 'noValue'];

const GRAPH = {
  axisBorderShow: false,
  axisColorMode: 'text',
  axisLabel: '',
  axisPlacement: 'auto',
  barAlignment: 0,
  barWidthFactor: 0.6,
  drawStyle: 'line',
  fillOpacity: 0,
  gradientMode: 'none',
  hideFrom: { legend: false, tooltip: false, viz: false },
  lineInterpolation: 'linear',
  lineWidth: 1,
  pointSize: 5,
  scaleDistribution: { type: 'linear' },
  showPoints: 'auto',
  spanNulls: false,
  stacking: { mode: 'none', group: 'A' },
  thresholdsStyle: { mode: 'off' },
};
const DEFAULTS = {
  timeseries: { color: { mode: 'palette-classic' }, custom: GRAPH },
  table: { color: { mode: 'thresholds' }, custom: { align: 'auto', cellOptions: { type: 'auto' }, inspect: false, filterable: false } },
  'state-timeline': { color: { mode: 'thresholds' }, custom: { fillOpacity: 70, lineWidth: 0 } },
  xychart: { color: { mode: 'palette-classic' }, custom: {} },
};
const THRESHOLDS = { mode: 'absolute', steps: [{ color: 'green', value: -Infinity }, { color: 'red', value: 80 }] };

// Some of them stand in the library twice, under an old and a new name.
const transformers = new Map(Object.values(standardTransformers).map((one) => [one.id, one]));
standardTransformersRegistry.setInit(() =>
  [...transformers.values()].map((one) => ({ id: one.id, name: one.name, transformation: async () => one, editor: null }))
);

/** The panel's field configuration, its defaults those of its type. */
export function fieldConfig(panel) {
  const own = structuredClone(panel.fieldConfig ?? {});
  const defaults = { thresholds: structuredClone(THRESHOLDS), color: { mode: 'thresholds' }, ...DEFAULTS[panel.type], ...own.defaults };
  defaults.custom = { ...DEFAULTS[panel.type]?.custom, ...own.defaults?.custom };
  const overrides = own.overrides ?? [];
  // JSON has no infinity: the first step has null.
  for (const { steps } of [defaults.thresholds, ...overrides.flatMap((one) => one.properties).filter((one) => one.id === 'thresholds').map((one) => one.value)]) {
    steps[0].value = -Infinity;
  }
  return { defaults, overrides };
}

function registry({ defaults, overrides }) {
  const custom = overrides.flatMap((one) => one.properties.map(({ id }) => id)).filter((id) => id.startsWith('custom.')).map((id) => id.slice(7));
  const item = (path, isCustom) => ({
    id: isCustom ? `custom.${path}` : path,
    name: path,
    path,
    isCustom,
    process: (!isCustom && PROCESSORS[path]) || identityOverrideProcessor,
    settings: {},
    shouldApply: () => true,
  });
  const customs = [...new Set([...Object.keys(defaults.custom), ...custom])];
  return new FieldConfigOptionsRegistry(() => [...STANDARD.map((path) => item(path, false)), ...customs.map((path) => item(path, true))]);
}

/** Frames with the panel's configuration on each of their fields. */
export function configured(panel, frames, theme) {
  const config = fieldConfig(panel);
  const data = applyFieldOverrides({
    data: frames,
    fieldConfig: config,
    fieldConfigRegistry: registry(config),
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
  cacheFieldDisplayNames(data);
  return data;
}

/** One frame for each combination of values of some fields, without these: Grafana has this transformation outside of its libraries. */
function partitioned({ fields: names, naming }, frames) {
  return frames.flatMap((frame) => {
    const by = frame.fields.filter(({ name }) => names.includes(name));
    const parts = new Map();
    for (let row = 0; row < frame.length; row++) {
      const key = JSON.stringify(by.map(({ values }) => values[row]));
      parts.set(key, [...(parts.get(key) ?? []), row]);
    }
    return [...parts.values()].map((rows) => {
      const labels = Object.fromEntries(by.map(({ name, values }) => [name, values[rows[0]]]));
      const part = (field) => ({ ...field, labels: naming?.asLabels ? labels : field.labels, values: rows.map((row) => field.values[row]) });
      const fields = frame.fields.filter((field) => !by.includes(field)).map(part);
      return { ...frame, name: Object.values(labels).join(' '), length: rows.length, fields };
    });
  });
}

/** Frames after the panel's transformations. */
export async function transformed(panel, frames) {
  for (const one of panel.transformations ?? []) {
    if (one.disabled) continue;
    if (one.id === 'partitionByValues') {
      frames = partitioned(one.options, frames);
      continue;
    }
    if (!transformers.has(one.id)) throw new Error(`no transformation is called ${one.id} here`);
    frames = await firstValueFrom(transformDataFrame([one], frames));
  }
  return frames;
}
