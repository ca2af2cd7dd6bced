'use strict';
(() => {
  const root = document.documentElement;
  const plots = JSON.parse(document.getElementById('plots').textContent);
  const elements = [...document.querySelectorAll('.plot')];
  const darkSystem = window.matchMedia('(prefers-color-scheme: dark)');

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Colours of the page that a figure takes over, for the theme in force.
  function themed(layout) {
    const axis = (own) => ({
      gridcolor: css('--grid'), linecolor: css('--rule'), tickcolor: css('--rule'),
      zerolinecolor: css('--rule'), showline: true, ticks: 'outside', automargin: true, ...own,
      title: {...own.title, standoff: 8},
    });
    return {
      ...layout,
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      shapes: (layout.shapes || []).map((s) => ({...s, line: {...s.line, color: css('--soft')}})),
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      font: {color: css('--ink'), size: 12, family: getComputedStyle(document.body).fontFamily},
      hoverlabel: {bgcolor: css('--card'), bordercolor: css('--rule'), font: {color: css('--ink')}},
      margin: {l: 56, r: 12, t: 30, b: 44}, showlegend: false, bargap: 0.22,
      modebar: {bgcolor: 'rgba(0,0,0,0)', color: css('--rule'), activecolor: css('--accent')},
    };
  }

  const config = {
    responsive: true, displaylogo: false,
    modeBarButtons: [['zoom2d', 'pan2d', 'resetScale2d', 'toImage']],  // none asks a server
  };

  function drawAll() {
    return Promise.all(elements.map((element) => {
      const plot = plots[element.dataset.plot];
      const shown = element.data ? element.data : plot.data;
      return Plotly.react(element, shown, themed(plot.layout), config);
    }));
  }

  function setTheme(dark) {
    root.dataset.theme = dark ? 'dark' : 'light';
  }

  document.getElementById('theme').addEventListener('click', () => {
    setTheme(root.dataset.theme !== 'dark');
    drawAll();
  });
  darkSystem.addEventListener('change', (event) => {
    setTheme(event.matches);
    drawAll();
  });

  // A legend button hides or shows its algorithm or variant in every panel of its figure.
  document.querySelectorAll('.legend button').forEach((button) => {
    button.addEventListener('click', () => {
      button.setAttribute('aria-pressed', button.getAttribute('aria-pressed') !== 'true');
      const figure = button.closest('article');
      const off = {algorithm: new Set(), variant: new Set()};
      figure.querySelectorAll('.legend button[aria-pressed="false"]').forEach((b) => {
        off[b.dataset.kind].add(b.dataset.value);
      });
      figure.querySelectorAll('.plot').forEach((element) => {
        const visible = element.data.map((t) =>
            !t.meta || !(off.algorithm.has(t.meta.algorithm) || off.variant.has(t.meta.variant)));
        Plotly.restyle(element, {visible});
      });
    });
  });

  function sortBy(table, column, ascending) {
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      return 'value' in cell.dataset ? (cell.dataset.value === '' ? null : +cell.dataset.value)
                                     : cell.textContent;
    };
    const order = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null);  // missing last, always
      const way = typeof a === 'number' ? a - b : a.localeCompare(b, undefined, {numeric: true});
      return ascending ? way : -way;
    };
    [...body.rows].sort((a, b) => order(key(a), key(b))).forEach((row) => body.append(row));
  }

  document.querySelectorAll('table.sortable').forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.classList.add('sort');
      head.tabIndex = 0;
      const sort = () => {
        const ascending = head.getAttribute('aria-sort') !== 'ascending';
        heads.forEach((other) => other.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
        sortBy(table, column, ascending);
      };
      head.addEventListener('click', sort);
      head.addEventListener('keydown', (event) => {
        if (event.key === 'Enter' || event.key === ' ') {
          event.preventDefault();
          sort();
        }
      });
    });
  });

  setTheme(darkSystem.matches);
  drawAll().then(() => {
    root.dataset.ready = 'yes';
  });
})();
