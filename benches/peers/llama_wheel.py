#!/tmp/peers/venv/bin/python
# development stand-in for llama-server: same flags as benches/peers uses
import sys, time, signal, threading
import xllamacpp as x
if '--version' in sys.argv: print('xllamacpp stand-in', x.__version__, x.get_system_info()); sys.exit()
a=sys.argv[1:]; g=lambda k,d=None: a[a.index(k)+1] if k in a else d
p=x.CommonParams(); p.model.path=g('-m'); p.port=int(g('--port')); p.n_ctx=int(g('-c')); p.n_parallel=int(g('-np'))
p.cpuparams.n_threads=int(g('-t')); p.cpuparams_batch.n_threads=int(g('-tb')); p.cache_ram_mib=0; p.hostnames=[g('--host')]; print(x.get_system_info(), flush=True)
p.endpoint_slots=True
for k in ('fit_params',):
    if hasattr(p,k): setattr(p,k,False)
signal.signal(signal.SIGTERM, lambda *_: __import__('os')._exit(0))
s=x.Server(p); print('up', getattr(s,'listening_address','?'), flush=True)
while True: time.sleep(1)
