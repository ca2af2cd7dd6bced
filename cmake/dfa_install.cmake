# placeholder, see the packaging commit
