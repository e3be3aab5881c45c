// The page as Grafana lays it out: head, variables, and panels on a grid of 24 columns.

import { LoadingState } from '@grafana/data';
import { Combobox, ErrorBoundaryAlert, Icon, InlineLabel, PanelChrome } from '@grafana/ui';
import { useEffect, useState } from 'react';

import { transformed } from './config.js';
import { PANELS } from './panels.jsx';
import { fillIn } from './variables.js';

const PADDING = 16;
const GAP = 8;
const ROW = 30;
// Charts draw themselves in frames of their own after their data came.
const SETTLED_MS = 1500;

/** Every panel, those of collapsed rows too: their rows are drawn opened, and what is below moves down. */
function opened(dashboard) {
  let moved = 0;
  // No data source of traces is here: panels of one are left out, and rows of nothing else.
  const own = (panel) => panel.type === 'row' || panel.targets?.every(({ expr }) => expr !== undefined);
  const kept = dashboard.panels.filter(own).filter((panel, at, all) => panel.type !== 'row' || panel.panels?.length || (all[at + 1] ?? { type: 'row' }).type !== 'row');
  return kept.flatMap((panel) => {
    const place = (one) => ({ ...one, gridPos: { ...one.gridPos, y: one.gridPos.y + moved } });
    const self = place(panel);
    if (panel.type !== 'row' || !panel.panels?.length) return [self];
    const first = Math.min(...panel.panels.map(({ gridPos }) => gridPos.y));
    const down = Math.max(0, panel.gridPos.y + 1 - first);
    const inside = panel.panels.map((one) => ({ ...one, gridPos: { ...one.gridPos, y: one.gridPos.y + moved + down } }));
    if (panel.collapsed) moved += Math.max(...panel.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) - first;
    return [self, ...inside];
  });
}

function Panel({ panel, place, prometheus, variables, annotations, range, theme, done }) {
  const [data, setData] = useState({ state: LoadingState.Loading });
  useEffect(() => {
    const load = async () => {
      const [frames, exemplars] = await Promise.all(['frames', 'exemplars'].map((what) => prometheus[what](panel, variables, place.width)));
      return { state: LoadingState.Done, frames: await transformed(panel, frames), exemplars };
    };
    load()
      .catch((error) => ({ state: LoadingState.Error, frames: [], error: error.message }))
      .then((found) => {
        setData(found);
        done({ title: panel.title, type: panel.type, frames: found.frames.filter(({ length }) => length).length, error: found.error });
      });
  }, []);
  const style = { position: 'absolute', ...place };
  if (panel.type === 'row') {
    return (
      <div style={{ ...style, display: 'flex', alignItems: 'center', gap: 4 }}>
        <Icon name="angle-down" />
        <span style={{ ...theme.typography.h5, margin: 0 }}>{fillIn(panel.title, variables, {}, 'text')}</span>
      </div>
    );
  }
  const Draw = PANELS[panel.type];
  const about = { panel, frames: data.frames ?? [], exemplars: data.exemplars ?? [], variables, annotations, range, theme };
  const empty = !about.frames.some(({ length }) => length);
  const words = !Draw ? `cannot draw ${panel.type} here` : empty ? panel.fieldConfig?.defaults?.noValue ?? 'No data' : undefined;
  return (
    <div style={style}>
      <PanelChrome
        title={fillIn(panel.title ?? '', variables, {}, 'text')}
        description={panel.description}
        width={place.width}
        height={place.height}
        padding={panel.type === 'table' ? 'none' : 'md'}
        displayMode={panel.transparent ? 'transparent' : 'default'}
        loadingState={data.state}
        statusMessage={data.error}
      >
        {(width, height) =>
          words ? (
            <div style={{ display: 'grid', placeItems: 'center', height, color: theme.colors.text.secondary }}>{data.frames ? words : ''}</div>
          ) : (
            <ErrorBoundaryAlert>
              <Draw {...about} width={width} height={height} />
            </ErrorBoundaryAlert>
          )
        }
      </PanelChrome>
    </div>
  );
}

function Head({ dashboard, variables, range, theme }) {
  const shown = Object.values(variables).filter(({ hidden }) => !hidden);
  const time = (at) => at.toDate().toISOString().slice(0, 16).replace('T', ' ');
  return (
    <>
      <div style={{ display: 'flex', justifyContent: 'space-between', marginBottom: 12 }}>
        <div style={theme.typography.h4}>{dashboard.title}</div>
        <div style={{ ...theme.typography.bodySmall, color: theme.colors.text.secondary }}>{`${time(range.from)} to ${time(range.to)} UTC`}</div>
      </div>
      <div style={{ display: 'flex', flexWrap: 'wrap', alignItems: 'center', gap: 8, marginBottom: 16 }}>
        {shown.map(({ name, label, text }) => (
          <div key={name} style={{ display: 'flex' }}>
            <InlineLabel width="auto">{label}</InlineLabel>
            <Combobox width={16} value={text} options={[{ label: text, value: text }]} onChange={() => {}} />
          </div>
        ))}
        <div style={{ flexGrow: 1 }} />
        {(dashboard.links ?? []).map(({ title, type }) => (
          <div key={title} style={{ ...theme.typography.bodySmall, display: 'flex', gap: 4, color: theme.colors.text.primary }}>
            <Icon name={type === 'dashboards' ? 'bars' : 'external-link-alt'} />
            {title}
          </div>
        ))}
      </div>
    </>
  );
}

export function Dashboard({ dashboard, width, drawn, ...more }) {
  const [panels] = useState(() => opened(dashboard));
  const [told] = useState([]);
  const column = (width - 2 * PADDING - 23 * GAP) / 24;
  const pixels = (cells) => cells * column + (cells - 1) * GAP;
  const place = ({ x, y, w, h }) => ({ left: x * (column + GAP), top: y * (ROW + GAP), width: pixels(w), height: h * (ROW + GAP) - GAP });
  const rows = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const done = (panel) => {
    told.push(panel);
    if (told.length === panels.length) setTimeout(() => drawn(told.filter(({ type }) => type !== 'row')), SETTLED_MS);
  };
  return (
    <div style={{ padding: PADDING, width, boxSizing: 'border-box' }}>
      <Head dashboard={dashboard} {...more} />
      <div style={{ position: 'relative', height: rows * (ROW + GAP) }}>
        {panels.map((panel) => (
          <Panel key={panel.id} panel={panel} place={place(panel.gridPos)} done={done} {...more} />
        ))}
      </div>
    </div>
  );
}
