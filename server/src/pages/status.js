const PERIOD = 1000;
const KEPT = 121;
const MINUTE = 60;
let history = [];
let timer = null;

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const setText = (id, text, small) => {
  byId(id).replaceChildren(text, ...(small ? [make('small', '', small)] : []));
};

// The moment about so many seconds ago, or the oldest.
const ago = (seconds) => {
  const now = history[history.length - 1];
  return history.find((moment) => moment.clock_s >= now.clock_s - seconds - 0.5) ?? history[0];
};

// Per moment but the first: what `read` counted since the one before, by second or by what `per` counted.
const changes = (read, per) => history.slice(1).map((now, index) => {
  const before = history[index];
  const divisor = per ? per(now) - per(before) : now.clock_s - before.clock_s;
  return divisor > 0 ? (read(now) - read(before)) / divisor : 0;
});

const points = (values, most, width, height) => values.map((value, index) => {
  const x = width * (1 - (values.length - 1 - index) / (KEPT - 2));
  return [x.toFixed(1), (height - (most ? value / most : 0) * (height - 3)).toFixed(1)];
});
const svg = (tag, attributes) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

const lineChart = (chart, values, color, label, words) => {
  const most = Math.max(...values, 1e-9);
  const way = points(values, most, 300, 54).map((point) => point.join(' '));
  const start = way.length ? way[0].split(' ')[0] : 300;
  chart.replaceChildren(
    svg('line', { class: 'rule', x1: 0, x2: 300, y1: 54, y2: 54 }),
    svg('path', { class: `area c${color}`, d: way.length ? `M${start} 54L${way.join('L')}L300 54Z` : '' }),
    svg('path', { class: `line c${color}`, d: way.length ? `M${way.join('L')}` : '' }),
  );
  chart.setAttribute('aria-label', `${label}: ${words} now, at most ${label === 'Step time' ? duration(most) : rate(most)} in two minutes`);
};

const stackedChart = (models) => {
  const layers = models.map((_, m) => changes((moment) => moment.models[m].committed));
  const totals = (layers[0] ?? []).map((_, at) => sum(layers.map((layer) => layer[at])));
  const most = Math.max(...totals, 1e-9);
  const paths = [svg('line', { class: 'rule', x1: 0, x2: 600, y1: 120, y2: 120 })];
  let floor = totals.map(() => 0);
  layers.forEach((layer, m) => {
    const top = floor.map((value, at) => value + layer[at]);
    const up = points(top, most, 600, 120).map((point) => point.join(' '));
    const down = points(floor, most, 600, 120).map((point) => point.join(' ')).reverse();
    if (up.length > 1) paths.push(svg('path', { class: `stacked c${m % 8}`, d: `M${up.join('L')}L${down.join('L')}Z` }));
    floor = top;
  });
  byId('stack').replaceChildren(...paths);
  byId('most').textContent = totals.length && most > 1e-6 ? rate(most) : '';
  const last = layers.map((layer, m) => `${models[m].name} ${rate(layer[layer.length - 1] ?? 0)}`);
  byId('stack').setAttribute('aria-label', `Tokens per second by model: ${last.join(', ')}; at most ${rate(most)} together`);
};

// Buckets since a minute ago, or since the start when nothing happened in it; without the empty ones at both ends.
const barChart = (chart, now, before, bounds, color, format, label) => {
  const recent = now.map((count, bucket) => count - before[bucket]);
  const counts = sum(recent) ? recent : now;
  const used = counts.map((count, bucket) => (count ? bucket : -1)).filter((bucket) => bucket >= 0);
  const first = used.length ? Math.max(used[0] - 1, 0) : 0;
  const last = used.length ? Math.min(used[used.length - 1] + 1, counts.length - 1) : Math.min(5, counts.length - 1);
  const most = Math.max(...counts, 1);
  const names = [...bounds.map(format), `> ${format(bounds[bounds.length - 1])}`];
  const bars = [];
  const ticks = [];
  const step = Math.ceil((last - first + 1) / (names[last].length > 3 ? 4 : 8));
  for (let bucket = first; bucket <= last; bucket += 1) {
    const bar = make('div', `c${color}`);
    bar.style.height = `${Math.max((counts[bucket] / most) * 100, counts[bucket] ? 3 : 0)}%`;
    bar.title = `up to ${names[bucket]}: ${counts[bucket]}`;
    bars.push(bar);
    ticks.push(make('span', '', (bucket - first) % step ? '' : names[bucket]));
  }
  chart.querySelector('.bars').replaceChildren(...bars);
  chart.querySelector('.ticks').replaceChildren(...ticks);
  const words = used.map((bucket) => `up to ${names[bucket]}: ${counts[bucket]}`).join(', ');
  chart.querySelector('.bars').setAttribute('aria-label', `${label}: ${words || 'nothing yet'}`);
};

const bound = (seconds) => {
  if (seconds < 1e-3) return `${Number((seconds * 1e6).toFixed(1))}µs`;
  return seconds < 1 ? `${Number((seconds * 1e3).toFixed(1))}ms` : `${seconds}s`;
};
const addCounts = (a, b) => a.map((count, index) => count + b[index]);
const rowsOf = (model) => addCounts(model.phases.decode.rows.counts, model.phases.extend.rows.counts);

const drawModel = (card, now, m) => {
  const model = now.models[m];
  const before = ago(MINUTE).models[m];
  card.querySelector('h2').replaceChildren(make('span', `swatch c${m % 8}`), model.name);
  const stuck = model.age_s > 5 ? `, no progress for ${duration(model.age_s)}` : '';
  card.querySelector('.state').textContent = model.state === 'ready' && !stuck ? `launches at ${model.launch_at} ready` : `${model.state}${stuck}`;
  for (const name of ['waiting', 'running', 'pending']) card.querySelector(`.${name}`).textContent = model[name];
  const speeds = changes((moment) => moment.models[m].committed);
  const speed = rate(speeds[speeds.length - 1] ?? 0);
  card.querySelector('.speed b').textContent = speed;
  lineChart(card.querySelector('.speed svg'), speeds, m % 8, 'Tokens per second', speed);
  const steps = changes((moment) => moment.models[m].busy_s, (moment) => moment.models[m].steps);
  const mean = (model.busy_s - before.busy_s) / (model.steps - before.steps);
  const step = duration(Number.isFinite(mean) ? mean : model.busy_s / model.steps);
  card.querySelector('.step b').textContent = step;
  lineChart(card.querySelector('.step svg'), steps, m % 8, 'Step time', step);
  const rows = (model.rows - before.rows) / (model.launches - before.launches);
  card.querySelector('.batch b').textContent = Number.isFinite(rows) ? rows.toFixed(1) : '–';
  barChart(card.querySelector('.batch'), rowsOf(model), rowsOf(before), now.bounds.rows, m % 8, String, 'Steps by rows');
  const [delays, old] = [model.admission_wait, before.admission_wait];
  const delay = (delays.sum_s - old.sum_s) / (sum(delays.counts) - sum(old.counts));
  card.querySelector('.delay b').textContent = duration(delay);
  barChart(card.querySelector('.delay'), delays.counts, old.counts, now.bounds.seconds, m % 8, bound, 'Handoffs by wait');
};

const draw = () => {
  const now = history[history.length - 1];
  const minute = ago(MINUTE);
  const names = now.models.map((model) => model.name);
  const lost = now.models.filter((model) => model.state !== 'ready');
  byId('dot').className = `dot ${now.state === 'ready' && !lost.length ? 'good' : 'bad'}`;
  byId('state').textContent = `${now.name} · ${lost.length ? `${lost[0].name} ${lost[0].state}` : now.state}`;
  const pending = sum(now.models.map((model) => model.pending));
  setText('running', shorten(now.requests.running), pending ? `${pending} pending` : '');
  setText('waiting', shorten(now.requests.waiting));
  const speeds = changes((moment) => sum(moment.models.map((model) => model.committed)));
  setText('speed', rate(speeds[speeds.length - 1] ?? 0));
  const firsts = [now.time_to_first_token, minute.time_to_first_token];
  const recent = firsts[0].count - firsts[1].count;
  setText('first', duration(recent ? (firsts[0].sum_s - firsts[1].sum_s) / recent : firsts[0].sum_s / firsts[0].count));
  const { finished } = now.requests;
  const odd = [[finished.error, 'failed'], [finished.abort, 'aborted']].filter(([count]) => count);
  setText('ended', shorten(sum(Object.values(finished))), odd.map((words) => words.join(' ')).join(', '));

  stackedChart(now.models);
  const all = now.models.map((model) => model.committed);
  const last = now.models.map((model, m) => model.committed - minute.models[m].committed);
  shareBar(byId('share-now'), last, names);
  shareBar(byId('share-all'), all, names);
  byId('legend').replaceChildren(...names.map((name, m) => {
    const item = make('li');
    const total = sum(last) ? last : all;
    const share = sum(total) ? percent(total[m] / sum(total)) : '–';
    item.append(make('span', `swatch c${m % 8}`), make('b', '', name), ` ${share}, ${shorten(all[m])} tokens in all`);
    return item;
  }));

  const cards = byId('models');
  while (cards.children.length < names.length) cards.append(byId('model').content.cloneNode(true));
  names.forEach((_, m) => drawModel(cards.children[m], now, m));

  const seconds = now.clock_s - minute.clock_s;
  const rows = now.models.flatMap((model, m) => model.handoffs.map((edge, e) => {
    const row = make('tr');
    const before = minute.models[m].handoffs[e];
    const name = make('td');
    name.append(make('span', `swatch c${m % 8}`), `${model.name} → ${edge.to}`);
    const moved = edge.kept + edge.dropped - before.kept - before.dropped;
    const cells = [seconds > 0 ? rate(moved / seconds) : '–', shorten(edge.kept), shorten(edge.dropped)];
    row.append(name, ...cells.map((cell) => make('td', '', cell)));
    return row;
  }));
  if (!rows.length) rows.push(make('tr', '', ''));
  byId('edges').replaceChildren(...rows);

  const { kv } = now;
  const used = kv.used / Math.max(kv.pages, 1);
  byId('kv-words').textContent = `${percent(used)} of ${shorten(kv.capacity_tokens)} tokens in use`;
  const parts = [['', kv.used], ['kept', kv.cached]].map(([name, count]) => {
    const part = make('i', name);
    part.style.width = `${(count / Math.max(kv.pages, 1)) * 100}%`;
    return part;
  });
  byId('kv-meter').replaceChildren(...parts);
  byId('kv-meter').setAttribute('aria-label', `${kv.used} of ${kv.pages} pages in use, ${kv.cached} more hold prefixes`);
  const hits = now.tokens.prompt ? `${percent(now.tokens.cached / now.tokens.prompt)} of all prompt tokens were found in the cache.` : '';
  byId('kv-hits').textContent = `${kv.cached} free pages still hold prefixes. ${hits}`;

  byId('policy').textContent = now.plan.policy;
  byId('plan-from').textContent = now.plan.active ? 'from the plan' : now.plan.automatic ? 'no plan yet' : 'as configured';
  const promise = [['predicted', now.plan.predicted_tokens_per_s], ['measured', now.plan.measured_tokens_per_s]];
  byId('promise').replaceChildren(...promise.filter(([, value]) => value !== null).map(([word, value]) => {
    const part = make('div', '', `tokens per second, ${word}`);
    part.prepend(make('b', '', rate(value)));
    return part;
  }));
  const up = Date.now() / 1000 - now.started;
  byId('foot').textContent = `TokenRouter ${now.version}, up for ${duration(Math.max(up, 0))}. Charts show what this page has seen since it was opened.`;
};

const look = async () => {
  clearTimeout(timer);
  try {
    const response = await fetch('/v1/status', { headers: headers(), cache: 'no-store' });
    if (response.status === 401) return askForKey(look);
    if (!response.ok) throw new Error((await problemOf(response)).message);
    const now = await response.json();
    const before = history[history.length - 1];
    // A clock that went back is another process.
    if (before && now.clock_s < before.clock_s) history = [];
    history = [...history, now].slice(-KEPT);
    draw();
  } catch (error) {
    byId('dot').className = 'dot bad';
    byId('state').textContent = `not reachable: ${error.message}`;
  }
  if (!document.hidden) timer = setTimeout(look, PERIOD);
};

document.onvisibilitychange = () => { if (!document.hidden) look(); };
look();
