for r in 1 2 3 4; do
 for p in rl conv; do
  for pin in none 4,5; do
   pre=""; [ $pin = none ] || pre="taskset -c $pin"
   echo | $pre python3 -m benchmarks.plain_worker time /tmp/a.json tests/programs/plain/$p.py tests/programs/plain/$p.py --device cuda --steps 60 >/dev/null 2>/tmp/err && python3 -c "
import json,statistics as s
d=json.load(open('/tmp/a.json'))['device_ns']; print('$p','$pin',round(s.median(d)/1e6,3), round(s.mean(d)/1e6,3))" || tail -2 /tmp/err
  done; done; done
