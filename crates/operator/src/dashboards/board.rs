//! A dashboard: rows of panels, and their conversion to Grafana's JSON.

use serde_json::Value;
use serde_json::json;

use crate::dashboards::frame;
use crate::dashboards::panel::Panel;

/// Schema version of classic dashboards, readable by Grafana 10.4 to 13 (grafana/grafana,
/// kinds/dashboard/dashboard_kind.cue).
pub(super) const SCHEMA_VERSION: u32 = 39;

/// Columns of Grafana's grid.
pub(super) const COLUMNS: u32 = 24;

/// A heading and its panels.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) title: &'static str,
    /// Collapsed rows do not run their queries until they are opened.
    pub(super) collapsed: bool,
    pub(super) panels: Vec<Panel>,
}

impl Row {
    pub(super) fn open(title: &'static str, panels: Vec<Panel>) -> Row {
        Row { title, collapsed: false, panels }
    }

    pub(super) fn folded(title: &'static str, panels: Vec<Panel>) -> Row {
        Row { title, collapsed: true, panels }
    }
}

/// A dashboard.
#[derive(Clone, Debug)]
pub(super) struct Board {
    /// Its uid and file name, used in links.
    pub(super) uid: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    /// Whether it has the variable for objectives.
    pub(super) by_objective: bool,
    pub(super) rows: Vec<Row>,
}

impl Board {
    /// All panels, in order.
    pub(super) fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "uid": self.uid,
            "title": self.title,
            "description": format!("{} (Made by `tokometer dashboards` {}.)", self.description, env!("CARGO_PKG_VERSION")),
            "tags": [frame::TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": false,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "weekStart": "",
            "fiscalYearStartMonth": 0,
            "liveNow": false,
            "links": frame::links(),
            "annotations": {"list": frame::annotations()},
            "templating": {"list": frame::variables(self.by_objective)},
            "panels": self.grid(),
        })
    }

    /// Lays out panels from left to right, with a new line when the next one does not fit, and each row below the
    /// previous one.
    fn grid(&self) -> Vec<Value> {
        let (mut ids, mut y, mut grid) = (1.., 0, Vec::new());
        let mut id = || ids.next().unwrap_or(0);
        for row in &self.rows {
            let heading = (id(), y);
            y += 1;
            let (mut x, mut tallest, mut panels) = (0, 0, Vec::new());
            for panel in &row.panels {
                if x + panel.width > COLUMNS {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                panels.push(panel.json(id(), x, y));
                x += panel.width;
                tallest = tallest.max(panel.height);
            }
            y += tallest;
            let (folded, open) = if row.collapsed { (panels, Vec::new()) } else { (Vec::new(), panels) };
            grid.push(json!({
                "id": heading.0,
                "type": "row",
                "title": row.title,
                "collapsed": row.collapsed,
                "gridPos": {"x": 0, "y": heading.1, "w": COLUMNS, "h": 1},
                "panels": folded,
            }));
            grid.extend(open);
            if row.collapsed {
                y = heading.1 + 1;
            }
        }
        grid
    }
}
