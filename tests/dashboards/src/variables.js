// Variables of a dashboard, and text with them filled in.

const QUERY = /^label_values\(\s*(?:([^]+),\s*)?(\w+)\s*\)$/;

/** Every variable with its value and what is shown of it (`text`). All of each is chosen; of one without All, `chosen` or the first. */
export async function loadVariables(dashboard, prometheus, chosen) {
  const variables = {};
  for (const variable of dashboard.templating?.list ?? []) {
    const { name, type } = variable;
    const shown = { name, type, label: variable.label || name, hidden: variable.hide === 2 };
    if (type === 'query') {
      const found = QUERY.exec((variable.query?.query ?? variable.query).trim());
      if (!found) throw new Error(`$${name}: what is ${JSON.stringify(variable.query)}?`);
      const options = await prometheus.labelValues(found[2], found[1] && fillIn(found[1], variables));
      const all = variable.allValue || `(${options.map((one) => one.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('|')})`;
      const one = options.find((option) => option === chosen(name)) ?? options[0] ?? '';
      variables[name] = variable.includeAll ? { ...shown, text: 'All', value: all } : { ...shown, text: one, value: one };
    } else {
      // A data source is called as its kind is.
      const text = type === 'datasource' ? variable.query.replace(/^./, (first) => first.toUpperCase()) : String(variable.current?.text ?? variable.query ?? '');
      variables[name] = { ...shown, text, value: String(variable.current?.value ?? text) };
    }
  }
  return variables;
}

/** `$name`, `${name}` and `${name:format}` by what they stand for, or by what is shown of them. */
export function fillIn(text, variables, more = {}, what = 'value') {
  return text.replace(/\$\{(\w+)(?::\w+)?\}|\$(\w+)/g, (whole, braced, plain) => {
    const name = braced ?? plain;
    return more[name] ?? variables[name]?.[what] ?? whole;
  });
}
