// Checks dashboards against Grafana's own TypeScript types: `node check-types.mjs DASHBOARD.json...`. Exit code 1 when one is not of them.
//
// Each dashboard becomes a literal in a module of its own, so that a key that the types do not know is an error, too. Enums may be
// told by their texts, which is how JSON has them.

import fs from 'node:fs';
import path from 'node:path';
import ts from 'typescript';

const COMPOSABLE = '@grafana/schema/dist/esm/raw/composable';
// Panel types, and what Grafana's types call them; one that is not here is an error.
const PANELS = {
  bargauge: 'BarGauge',
  heatmap: 'Heatmap',
  stat: 'Stat',
  'state-timeline': 'StateTimeline',
  table: 'Table',
  timeseries: 'TimeSeries',
  xychart: 'XYChart',
};
const HEAD = `
import type { AnnotationQuery, Dashboard, Panel, VariableModel } from '@grafana/schema';
type Json<T> = T extends string ? \`\${T}\` : T extends (infer U)[] ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Part<T> = T extends (infer U)[] ? Part<U>[] : T extends object ? { [K in keyof T]?: Part<T[K]> } : T;
// What the data sources read of a target, and a Prometheus besides of annotations and variables: these types are in Grafana, not in
// its library.
type Source<T> = { type: T; uid: string };
type Traces = { refId: string; datasource: Source<'tempo'>; query: string; queryType: 'traceql'; limit?: number; spss?: number; tableType?: 'traces' | 'spans' };
type Series = { refId: string; datasource: Source<'prometheus'>; expr: string; legendFormat?: string; format?: 'heatmap' | 'table' | 'time_series';
  instant?: boolean; range?: boolean; exemplar?: boolean; interval?: string; editorMode?: 'code'; hide?: boolean };
type Asked = { expr?: string; step?: string; tagKeys?: string; textFormat?: string; titleFormat?: string; useValueForTime?: boolean };
type Found = { definition?: string; regex?: string; refresh?: number };
`;

/** The module with the types of a panel's options, and whether it has such of fields. */
function panelTypes(type) {
  const name = PANELS[type];
  if (!name) throw new Error(`a panel of the type ${type}: say in PANELS what Grafana calls it`);
  const of = `${name.toLowerCase()}/panelcfg/x`;
  const text = fs.readFileSync(path.join(import.meta.dirname, `node_modules/@grafana/schema/dist/types/raw/composable/${of}/types.gen.d.ts`), 'utf8');
  return { from: `${COMPOSABLE}/${of}/${name}PanelCfg_types.gen`, fields: /export (interface|type) FieldConfig\b/.test(text) };
}

/** A module that holds only when the dashboard is one. */
function module({ annotations, templating, ...dashboard }) {
  const lines = [HEAD, `export const dashboard: Json<Dashboard> = ${JSON.stringify(dashboard, null, 1)};`];
  lines.push(`export const annotations: (Json<AnnotationQuery> & Asked)[] = ${JSON.stringify(annotations?.list ?? [], null, 1)};`);
  lines.push(`export const variables: (Json<VariableModel> & Found)[] = ${JSON.stringify(templating?.list ?? [], null, 1)};`);
  const panels = dashboard.panels.flatMap((panel) => [panel, ...(panel.panels ?? [])]).filter(({ type }) => type !== 'row');
  panels.forEach(({ targets = [], ...panel }, index) => {
    const { from, fields } = panelTypes(panel.type);
    const of = `Json<Panel<Part<P${index}.Options> & Record<string, unknown>, ${fields ? `Part<P${index}.FieldConfig>` : 'Record<string, never>'}>>`;
    lines.push(`import type * as P${index} from '${from}';`);
    lines.push(`export const panel${index}: ${of} = ${JSON.stringify(panel)};`);
    lines.push(`export const options${index}: Json<Part<P${index}.Options>> = ${JSON.stringify(panel.options ?? {})};`);
    if (fields) lines.push(`export const custom${index}: Json<Part<P${index}.FieldConfig>> = ${JSON.stringify(panel.fieldConfig?.defaults?.custom ?? {})};`);
    lines.push(`export const targets${index}: (Series | Traces)[] = ${JSON.stringify(targets)};`);
  });
  return lines.join('\n');
}

const files = process.argv.slice(2);
if (!files.length) {
  console.error('usage: node check-types.mjs DASHBOARD.json...');
  process.exit(2);
}
const modules = new Map();
for (const file of files) {
  const name = path.join(import.meta.dirname, `${path.basename(file, '.json')}.dashboard.ts`);
  modules.set(name, module(JSON.parse(fs.readFileSync(file, 'utf8'))));
}
const options = { strict: true, noEmit: true, skipLibCheck: true, module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler, target: ts.ScriptTarget.ES2022, types: [] };
const host = ts.createCompilerHost(options);
const { getSourceFile, fileExists } = host;
host.fileExists = (name) => modules.has(name) || fileExists(name);
host.getSourceFile = (name, ...more) => (modules.has(name) ? ts.createSourceFile(name, modules.get(name), more[0], true) : getSourceFile(name, ...more));
const program = ts.createProgram([...modules.keys()], options, host);
const found = ts.getPreEmitDiagnostics(program);
for (const { file, start, messageText } of found) {
  const text = ts.flattenDiagnosticMessageText(messageText, '\n');
  const near = file ? file.text.slice(Math.max(0, start - 60), start + 60).replace(/\s+/g, ' ') : '';
  console.log(`${file ? path.basename(file.fileName) : ''}: ${text}\n    near: ${near}`);
}
console.log(`${files.length} dashboards, ${found.length} differences from Grafana's types`);
process.exit(found.length ? 1 : 0);
