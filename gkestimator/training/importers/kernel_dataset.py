matches=lambda p: False
load=lambda p: []
