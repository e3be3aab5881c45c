module tokometer.invalid/tests/cluster/programs

go 1.26.0
