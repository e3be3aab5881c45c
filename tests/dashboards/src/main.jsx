// A page with one dashboard: `?dashboard=FILE&prometheus=URL&from=MS&to=MS&theme=dark|light&width=PIXELS&scrape=SECONDS`,
// and `var-NAME=VALUE` for variables without All.
//
// When it is drawn, `window.drawn` says what every panel got.

import { createTheme, dateTime, ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles } from '@grafana/ui';
import medium from 'inter-ui/web/Inter-Medium.woff2';
import regular from 'inter-ui/web/Inter-Regular.woff2';
import { createRoot } from 'react-dom/client';
import 'uplot/dist/uPlot.min.css';

import { Dashboard } from './dashboard.jsx';
import { Prometheus } from './prometheus.js';
import { loadVariables } from './variables.js';

const asked = new URLSearchParams(location.search);

/** Panels measure their text before they lay it out: its fonts must be there first. */
async function loadFonts() {
  for (const [weight, url] of [['400', regular], ['500', medium]]) {
    document.fonts.add(await new FontFace('Inter', `url(${url})`, { weight }).load());
  }
}

function timeRange() {
  const [from, to] = ['from', 'to'].map((name) => dateTime(Number(asked.get(name))));
  return { from, to, raw: { from, to } };
}

async function main() {
  await Promise.all([initPluginTranslations('grafana-panels'), loadFonts()]);
  const range = timeRange();
  const prometheus = new Prometheus(asked.get('prometheus'), range, Number(asked.get('scrape') ?? 15));
  const dashboard = await (await fetch(asked.get('dashboard'))).json();
  const variables = await loadVariables(dashboard, prometheus, (name) => asked.get(`var-${name}`));
  const annotations = await prometheus.annotations(dashboard, variables);
  const theme = createTheme({ colors: { mode: asked.get('theme') ?? 'dark' } });
  const drawn = (panels) => Object.assign(window, { drawn: panels });
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles isExtensionSidebarOpen={false} hackNoBackdropBlur={false} />
      <style>{'html, body, #root { margin: 0; height: auto !important; overflow: visible !important; }'}</style>
      <Dashboard width={Number(asked.get('width') ?? 1400)} {...{ dashboard, prometheus, variables, annotations, range, theme, drawn }} />
    </ThemeContext.Provider>
  );
}

main().catch((error) => Object.assign(window, { failed: String(error?.stack ?? error) }));
